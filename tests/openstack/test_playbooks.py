"""What can be said of the playbooks without a machine: form, and what goes into an image and onto a disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from playbooks import ANSIBLE, ROOT, Played, environment, play, programs

HERE = Path(__file__).resolve().parent
PACK = ANSIBLE / "roles/image/files/pack.py"


@pytest.mark.parametrize("playbook", ["site.yml", "local.yml", "remove.yml"])
def test_playbooks_parse(playbook: str) -> None:
    words = [programs() / "ansible-playbook", "--syntax-check", ANSIBLE / playbook]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr


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


def disk(path: Path, contents: bytes = b"", at: int = 0) -> Path:
    """Make a disk that is a file, with something on it."""
    with path.open("wb") as file:
        file.truncate(8 << 20)
        file.seek(at)
        file.write(contents)
    return path


def made(disk: Path) -> Played:
    return play(HERE / "make_disk.yml", ansible_python_interpreter=sys.executable, share_disk=str(disk))


def test_an_empty_disk_gets_a_file_system_and_keeps_it(tmp_path: Path) -> None:
    empty = disk(tmp_path / "disk")
    assert made(empty).assert_well().changed == {"localhost": 1}
    # Where ext4 has its number.
    assert empty.read_bytes()[0x438:0x43A] == b"\x53\xef"
    before = empty.read_bytes()
    assert made(empty).assert_well().changed == {"localhost": 0}
    assert empty.read_bytes() == before


# A table with one partition of Linux at 1 MiB; and the sign of a swap area, at the end of its first page.
PARTITION = bytes([0, 0, 2, 0, 0x83, 0, 0, 0]) + (2048).to_bytes(4, "little") + (4096).to_bytes(4, "little")
TAKEN = [
    ("a table of partitions, dos", 446, PARTITION + bytes(48) + b"\x55\xaa"),
    ("swap", 1024, (1).to_bytes(4, "little") + (2047).to_bytes(4, "little") + bytes(3054) + b"SWAPSPACE2"),
]


@pytest.mark.parametrize(("what", "at", "contents"), TAKEN, ids=["partitions", "swap"])
def test_a_disk_with_something_else_on_it_is_refused_by_name_and_left(
    tmp_path: Path, what: str, at: int, contents: bytes
) -> None:
    taken = disk(tmp_path / "disk", contents, at)
    before = taken.read_bytes()
    refused = made(taken)
    assert refused.status != 0
    assert f"{taken} of localhost is taken: {what}." in refused.said(), refused.output
    assert f"empty it (sudo wipefs --all {taken})" in refused.said()
    assert taken.read_bytes() == before


def test_the_certificate_is_for_the_masters_name_or_address(tmp_path: Path) -> None:
    def certified(address: str) -> Played:
        return play(
            HERE / "make_certificate.yml",
            # The one that has what makes certificates.
            ansible_python_interpreter="{{ ansible_playbook_python }}",
            trust_folder=str(tmp_path),
            trust_owner="",
            public_address=address,
            member={"address": "10.0.0.10"},
        ).assert_well()

    def names() -> list[str]:
        words = ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", tmp_path / "tls.crt"]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return shown.splitlines()[1].strip().split(", ")

    others = ["IP Address:10.0.0.10", "IP Address:127.0.0.1", "DNS:ronde-master", "DNS:localhost"]
    certified("2001:db8::7")
    assert names() == ["IP Address:2001:DB8:0:0:0:0:0:7", *others]
    certified("cluster.example.org")
    assert names() == ["DNS:cluster.example.org", *others]
    # It stays: people have told their browsers to trust it.
    assert certified("cluster.example.org").changed == {"localhost": 0}
