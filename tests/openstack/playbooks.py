"""Runs the playbooks of deploy/openstack/ansible, with the Ansible that they pin, and says what they changed.

    done = play("local.yml", local_machines=3, local_inventory=str(file))
    assert done.changed == {"localhost": 0, "ronde-master": 0}

What is not said is as users have it: the settings come from ansible.cfg, and there is no inventory.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = ROOT / "deploy" / "openstack" / "ansible"

RECAP = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.MULTILINE)


@functools.cache
def programs() -> Path:
    """Return the folder of Ansible's programs, from the cache."""
    made = subprocess.run([ROOT / "tools/python-env", "ansible"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(made.stdout.strip()) / "bin"


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which Ansible's programs find each other, and our settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    path = f"{programs()}:{(more or kept).get('PATH', '')}"
    return {**kept, **(more or {}), "PATH": path, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg")}


@dataclass
class Played:
    """How a playbook ended, and how many changes it made on each machine."""

    status: int
    output: str
    changed: dict[str, int]

    def said(self) -> str:
        """Return the output without the breaks of its lines."""
        return " ".join(self.output.split())

    def assert_well(self) -> Played:
        assert self.status == 0, self.output[-6000:]
        return self


def play(
    playbook: str | Path,
    *options: str,
    inventory: Path | None = None,
    env: Mapping[str, str] | None = None,
    **variables: Any,
) -> Played:
    """Run a playbook, one of ours by its name, to its end."""
    words = [programs() / "ansible-playbook", ANSIBLE / playbook, *options]
    where = [] if inventory is None else ["--inventory", inventory]
    done = subprocess.run(
        [*words, *where, "--extra-vars", json.dumps(variables)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(env),
        check=False,
    )
    changed = {host: int(count) for host, count, _, _ in RECAP.findall(done.stdout)}
    return Played(done.returncode, done.stdout, changed)
