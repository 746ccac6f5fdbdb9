"""An environment is known to hold a wheel, or not to hold it, by the contents of every file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import ronde
from ranks import REPOSITORY


def compare(wheel: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "tools" / "same_wheel.py"), str(wheel)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_wheel_that_is_installed_is_told_by_its_hash(wheel: Path) -> None:
    done = compare(wheel)
    assert done.stderr == ""
    assert done.stdout == f"{wheel.name}  sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    assert done.returncode == 0


def test_files_that_are_missing_or_have_other_contents_are_named(wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / wheel.name
    changed, added = "ronde/__init__.py", "ronde/added.py"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + (b"# changed\n" if name == changed else b""))
        new.writestr(added, "")
    done = compare(other)
    assert done.returncode == 1
    packages = Path(ronde.__file__).parents[1]
    assert [line.split()[1] for line in done.stderr.splitlines()] == [str(packages / changed), str(packages / added)]
