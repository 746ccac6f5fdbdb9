"""What a cluster has outside of its namespaces, which the kernel therefore does not take back: a folder and cgroups.

Both carry the number and the birth of the process that made the cluster in their name, and so does the environment of
its processes. So whoever comes next can tell whose owner is gone, and remove what a killed run has left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# Where files can lie: in memory, where there is enough of it, since unpacked images are many small files.
MEMORY = Path("/dev/shm")
ENOUGH = 4 << 30
OWNED = re.compile(r"^ronde-cluster-(\d+)-(\d+)-\d+$")

_numbers = itertools.count(1)


def birth(pid: int) -> int | None:
    """Return when a process was born, in the kernel's clock; None if it does not live. A number can come again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name is in parentheses and may hold anything, parentheses too.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def new_name() -> str:
    """Return a name for a cluster of this process."""
    return f"ronde-cluster-{os.getpid()}-{birth(os.getpid())}-{next(_numbers)}"


def make_folder(name: str) -> Path:
    """Make the folder for a cluster's files."""
    folder = (MEMORY if _has_room(MEMORY) else _disk()) / name
    folder.mkdir(mode=0o700)
    return folder


def _has_room(place: Path) -> bool:
    try:
        state = os.statvfs(place)
    except OSError:
        return False
    return state.f_bavail * state.f_frsize >= ENOUGH and not state.f_flag & os.ST_NOEXEC


def _disk() -> Path:
    return Path(tempfile.gettempdir()).resolve()


def folders_of(name: str) -> list[Path]:
    """Return the folders of the cluster that are there."""
    return [place / name for place in (MEMORY, _disk()) if (place / name).exists()]


def make_cgroup(path: str) -> None:
    """Make a cgroup in every hierarchy: version 1 has one a controller, version 2 has one for all."""
    for tree in _trees():
        group = tree
        for part in path.split("/"):
            group /= part
            group.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                # Version 1 lets nobody in as long as these are empty, as they are at first.
                if tree != CGROUPS and (group / file).exists() and not (group / file).read_text().strip():
                    (group / file).write_text((group.parent / file).read_text())


def remove_cgroups(path: str, seconds: float = 10.0) -> None:
    """Remove a cgroup and those below it, once the last process is out of them."""
    end = time.monotonic() + seconds
    for tree in _trees():
        top = tree / path
        groups = [Path(folder) for folder, _below, _files in os.walk(top, topdown=False)]
        for group in groups:
            while True:
                try:
                    group.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.05)  # sleep: between two tries


def processes_of(name: str) -> dict[int, str]:
    """Return the numbers and command lines of all processes of the cluster, those in containers included."""
    found = {}
    for process in Path("/proc").iterdir():
        # Those that end meanwhile are none of it any more.
        with contextlib.suppress(OSError):
            if not process.name.isdigit() or not (words := (process / "cmdline").read_bytes()):
                continue
            known = f"RONDE_TEST_CLUSTER={name}".encode() in (process / "environ").read_bytes().split(b"\0")
            if known or name in (process / "cgroup").read_text():
                found[int(process.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return found


def cgroups_of(name: str) -> list[Path]:
    """Return the cgroups of the cluster that are there."""
    return [tree / name for tree in _trees() if (tree / name).exists()]


def sweep() -> None:
    """End and remove what clusters have left whose process is gone."""
    names = {path.name for place in (MEMORY, _disk(), *_trees()) if place.exists() for path in place.iterdir()}
    for name in names:
        owned = OWNED.match(name)
        if owned is None or birth(int(owned[1])) == int(owned[2]):
            continue
        # The kernel has ended what ran inside; a command from outside may still be at it.
        for pid in processes_of(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # What is still busy dying is left to the next.
        with contextlib.suppress(OSError):
            remove_cgroups(name)
            for folder in folders_of(name):
                shutil.rmtree(folder)


def _trees() -> list[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [tree for tree in sorted(CGROUPS.iterdir()) if tree.is_dir() and not tree.is_symlink()]
