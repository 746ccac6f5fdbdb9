"""What can be said of the playbooks without a machine: they parse, they lint, and what goes into an image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from playbooks import ANSIBLE, ROOT, environment, programs

PACK = ANSIBLE / "roles/image/files/pack.py"


@pytest.mark.parametrize("playbook", ["site.yml", "local.yml", "remove.yml"])
def test_playbooks_parse(playbook: str) -> None:
    words = [programs() / "ansible-playbook", "--syntax-check", ANSIBLE / playbook]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_linter_of_ansible_finds_nothing() -> None:
    words = [programs() / "ansible-lint", "--nocolor"]
    done = subprocess.run(words, cwd=ANSIBLE, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_of_clusters_has_the_versions_of_the_requirements() -> None:
    lines = (ANSIBLE / "requirements.txt").read_text().splitlines()
    pins = " ".join(line for line in lines if not line.startswith("#"))
    assert f"`pip install {pins}`" in (ROOT / "docs" / "cluster.md").read_text()


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Make what images are built from, in small."""
    for name in ("deploy/images/cpu.Dockerfile", "deploy/images/files/sshd", "examples/digits.py", "dist/ronde-1.whl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def packed(context: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PACK, context, *options], capture_output=True, text=True, check=False)


def test_an_image_has_another_name_when_something_else_goes_in(context: Path) -> None:
    first = packed(context).stdout
    assert len(first.strip()) == 64
    # Things that no build reads, and times, do not count.
    (context / "notes.txt").touch()
    (context / "examples/digits.py").touch()
    assert packed(context).stdout == first
    (context / "deploy/images/files/sshd").chmod(0o755)
    second = packed(context).stdout
    (context / "examples/digits.py").write_text("changed")
    assert len({first, second, packed(context).stdout}) == 3


def test_a_context_without_a_wheel_is_refused_with_what_to_do(context: Path) -> None:
    (context / "dist/ronde-1.whl").unlink()
    done = packed(context)
    assert done.returncode == 1
    assert "run `make wheel`" in done.stderr


def test_a_context_that_is_none_is_refused(context: Path) -> None:
    (context / "deploy/images/cpu.Dockerfile").unlink()
    done = packed(context)
    assert done.returncode == 1
    assert "image_context has to name a folder" in done.stderr
