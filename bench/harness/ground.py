"""Where ranks run: this machine, or several test hosts. And how ranks are laid out over hosts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.environment import ROOT, SetupError

sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from hosts import Hosts, HostsError


@dataclass(frozen=True)
class Place:
    """Where one rank stands in the job, in the terms that scripts know."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: int


@dataclass(frozen=True)
class Layout:
    """How many ranks each host has: (5, 1) is five on the first and one on the second."""

    ranks_on: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read `4x1` (four hosts with one rank each) or `5+1` (five ranks and one)."""
        try:
            if "x" in text:
                hosts, ranks = (int(word) for word in text.split("x"))
                counts = (ranks,) * hosts
            else:
                counts = tuple(int(word) for word in text.split("+"))
        except ValueError:
            raise SetupError(f"{text!r} is no layout: write 4x1 for 4 hosts of 1 rank, or 5+1") from None
        if not counts or min(counts) < 1:
            raise SetupError(f"{text!r} is no layout: every host has at least one rank")
        return cls(counts)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return sum(self.ranks_on)

    def places(self) -> list[Place]:
        """Return every rank's place, in the order of ranks: host by host."""
        places: list[Place] = []
        for host, local_size in enumerate(self.ranks_on, start=1):
            for local_rank in range(local_size):
                # A rank's cross communicator holds the ranks of the same local number on other hosts.
                peers = [other for other, count in enumerate(self.ranks_on, start=1) if count > local_rank]
                cross_rank = peers.index(host)
                place = Place(len(places), self.size, local_rank, local_size, cross_rank, len(peers), host)
                places.append(place)
        return places


class Ground(Protocol):
    """Somewhere that processes can be started on numbered hosts."""

    interface: str
    # A folder that all hosts see, to hand files to ranks.
    shared: Path

    def popen(self, host: int, command: Sequence[object], env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a command on a host, its outputs on pipes."""

    def address(self, host: int) -> str:
        """Return the address by which the other hosts reach this one."""

    def free_port(self) -> int:
        """Return a port that nobody listens on, on host 1."""


_PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


class ThisMachine:
    """All ranks here, as processes of this machine."""

    interface = "lo"

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        # Ends what we started when we are killed; where the tool is missing, only when we end in order.
        self._leash = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []

    def popen(self, _host: int, command: Sequence[object], env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a command here."""
        words = [*self._leash, *(str(word) for word in command)]
        return subprocess.Popen(words, env={**os.environ, **env}, **_PIPES)

    def address(self, _host: int) -> str:
        """Return the loopback address."""
        return "127.0.0.1"

    def free_port(self) -> int:
        """Return a port that was free a moment ago."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            return int(server.getsockname()[1])


class MadeHosts:
    """Ranks on test hosts, each on its own."""

    interface = "eth0"

    def __init__(self, hosts: Hosts, shared: Path) -> None:
        self.hosts = hosts
        self.shared = shared
        self._next_port = 20000

    def popen(self, host: int, command: Sequence[object], env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a command on the host."""
        return self.hosts.popen(host, command, env, **_PIPES)

    def address(self, host: int) -> str:
        """Return the host's address on the test network."""
        return self.hosts.address(host)

    def free_port(self) -> int:
        """Return a port not given before; the hosts are ours alone, so nobody else has it."""
        self._next_port += 1
        return self._next_port


@contextmanager
def this_machine() -> Iterator[ThisMachine]:
    """Give the ground of this machine, with a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ronde-bench-") as shared:
        yield ThisMachine(Path(shared))


@contextmanager
def made_hosts(count: int, rate: str | None, visible: Sequence[Path]) -> Iterator[MadeHosts]:
    """Make test hosts that see the given folders of this machine."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ronde-bench-") as shared,
            Hosts(count, rate, expose=[*visible, shared]) as hosts,
        ):
            yield MadeHosts(hosts, Path(shared))
    except HostsError as error:
        raise SetupError(str(error)) from None
