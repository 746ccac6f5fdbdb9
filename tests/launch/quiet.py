"""What a job leaves on the hosts: nothing. Taken down before jobs run, and compared afterwards."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from hosts import Hosts
from processes import processes_of
from sshd import HOME
from waiting import eventually

# What is kept from one job to the next on purpose: whole programs and packages, named by their hash.
KEPT = re.compile(rf"{HOME}/\.cache(/ronde(/(agents|packages)(/[0-9a-f]{{64}}(/.*)?)?)?)?")
# Where a program may leave something behind.
FOLDERS = ("/tmp", "/var/tmp", "/run", "/dev/shm", HOME)


class Quiet:
    """The processes and files of all hosts while no job runs."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._processes = {host: set(processes_of(hosts, host)) for host in hosts.numbers()}
        self._files = {host: set(_files(hosts, host)) for host in hosts.numbers()}

    def leftovers(self) -> list[str]:
        """Return what is there now and was not then, a line each."""
        return [*self._new_processes(), *self._new_files()]

    def _new_processes(self) -> Iterator[str]:
        for host, before in self._processes.items():
            for process in processes_of(self._hosts, host):
                if process not in before:
                    yield f"process on h{host}: {process}"

    def _new_files(self) -> Iterator[str]:
        for host, before in self._files.items():
            for file in sorted(set(_files(self._hosts, host)) - before):
                yield f"file on h{host}: {file}"

    def await_again(self) -> None:
        """Wait until nothing of a job is left."""
        eventually(lambda: not self.leftovers(), lambda: "\n".join(["these to go:", *self.leftovers()]))


def _files(hosts: Hosts, host: int) -> Iterator[str]:
    for folder in FOLDERS:
        root = hosts.path(host, folder)
        for parent, folders, files in os.walk(root):
            for name in (*folders, *files):
                file = f"{folder}/{(Path(parent) / name).relative_to(root)}"
                if not KEPT.fullmatch(file):
                    yield file
