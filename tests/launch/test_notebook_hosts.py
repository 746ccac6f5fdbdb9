"""Cells of a notebook on the hosts of the cluster around it: where they run, what they show, and how they stop."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from launcher import PROGRAMS, start_command
from ranks import HERE
from sshd import HOME, PORT, SshHosts

HOSTFILE = f"{HOME}/hostfile"


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def cluster(hosts: SshHosts) -> SshHosts:
    """Give hosts of which the first knows who is in the cluster."""
    hosts.write(1, HOSTFILE, "h1 slots=1\nh2 slots=1\n")
    return hosts


def cells(hosts: SshHosts, *code: str) -> list[dict[str, Any]]:
    """Run cells in a notebook on host 1, and return what each left."""
    environment = {"RONDE_HOSTFILE": HOSTFILE, "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}
    with start_command(hosts, [sys.executable, PROGRAMS / "notebook.py", *code], env=environment) as job:
        done = job.end(120)
    assert done.status == 0, done
    found: list[dict[str, Any]] = json.loads(done.output)
    return found


def test_cells_run_on_all_hosts_of_the_cluster(cluster: SshHosts) -> None:
    cell = f"%%ronde -p {PORT}\nimport socket, ronde\nronde.init()\nprint('here')\nronde.size(), socket.gethostname()"
    (ran,) = cells(cluster, cell)
    assert (ran["status"], ran["result"]) == ("ok", "[(2, 'h1'), (2, 'h2')]"), ran
    head, first, second = ran["shown"]
    assert head.splitlines()[0].startswith("✓ done · 2 ranks on 2 hosts · ")
    assert (first, second) == ("[0] here", "[1] here")


def test_the_stop_button_leaves_nothing_on_any_host_and_a_failure_names_its_host(cluster: SshHosts) -> None:
    waits = f"%%ronde -p {PORT}\nimport signal\nprint('waits')\nsignal.pause()"
    fails = f"%%ronde -p {PORT}\nimport ronde\nronde.init()\nassert ronde.rank() == 0, 'a bad disk'\nronde.barrier()"
    stopped, failed = cells(cluster, waits, fails)
    assert stopped["error"] == "KeyboardInterrupt: the job was ended, and nothing of it is left running"
    assert stopped["shown"][0].splitlines()[0].startswith("■ interrupted · 2 ranks on 2 hosts · ")
    assert failed["error"].startswith("rank 1 on h2 failed first:\n")
    assert failed["error"].endswith("AssertionError: a bad disk")
