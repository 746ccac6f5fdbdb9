"""What runs on a test host, seen from this machine, where every process of every host has a number.

Reading `/proc` from outside starts nothing on the host, so a list is true and quick: tests look
many times a second until something has come or gone.

    for process in processes_of(hosts, 2):
        print(process.pid, process.words)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hosts import Hosts


@dataclass(frozen=True)
class Process:
    """One process of a host, by the numbers that this machine gives to it, its parent and its session.

    Two are the same if number and birth are: the rest may change in a life.
    """

    pid: int
    born: int
    parent: int = field(compare=False)
    session: int = field(compare=False)
    name: str = field(compare=False)
    words: tuple[str, ...] = field(compare=False)

    def __str__(self) -> str:
        return f"{self.pid} {' '.join(self.words) or self.name}"

    def environment(self) -> str:
        """Return its environment as it was when it started, one variable a line; empty if it has ended."""
        return _contents(self.pid, "environ").replace("\0", "\n")


def processes_of(hosts: Hosts, host: int) -> list[Process]:
    """Return all processes of the host but its first, oldest first. The dead that nobody has buried do not count."""
    namespace = hosts.process_namespace(host)
    first = hosts.first_process(host)
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == first:
            continue
        try:
            if str(Path(entry, "ns/pid").readlink()) != namespace:
                continue
        except OSError:
            # It has ended meanwhile, or is a zombie, which has no namespaces any more.
            continue
        process = _read(int(entry.name))
        if process is not None:
            found.append(process)
    return sorted(found, key=lambda process: (process.born, process.pid))


def _read(pid: int) -> Process | None:
    stat = _contents(pid, "stat")
    if not stat:
        return None
    # The name is in parentheses and may hold anything, parentheses too.
    name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
    if rest[0] in "ZX":
        return None
    words = tuple(_contents(pid, "cmdline").rstrip("\0").split("\0"))
    return Process(pid, int(rest[19]), int(rest[1]), int(rest[3]), name, words)


def _contents(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    except OSError:
        return ""
