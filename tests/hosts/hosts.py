#!/usr/bin/env python3
"""Test hosts: machines of our own, made of kernel namespaces, for tests and benchmarks that need several.

Each host has its own network (`eth0` on one bridge, with an IPv4 and an IPv6
address, optionally limited in speed both ways), processes, host name, System V and POSIX shared memory, and root file
system: an overlay over this machine's files whose changes live in memory. A
network namespace alone would not be a host: files, unix sockets with a path name
and processes would still be shared, and a library could take a shortcut through
them that real machines do not have.

    with Hosts(4, rate="1gbit") as hosts:
        server = hosts.popen(1, ["python3", "server.py", hosts.address(1)])
        hosts.run(2, ["python3", "client.py", hosts.address(1)])

Hosts are numbered from 1 and know each other as h1, h2, and so on, by IPv6 as h1.v6,
h2.v6. `sshd.py` adds servers to log in by, `troubles.py` what can be wrong with a
host. Nothing has a name outside: namespaces, links and file systems belong to one holding process a
host, which ends when the pipe from this process closes. So they are gone after the
`with` block and also when this process is killed, and any number of such networks
can stand side by side with the same addresses. Needs root.

From a shell, `hosts.py 3 --rate 1gbit` keeps three hosts until Enter is pressed and
says how to run commands on them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SUBNET = "10.77.0"
SUBNET6 = "fd00:77:"
MOST_HOSTS = 200
INIT = Path(__file__).resolve().with_name("init.sh")
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "ip": "iproute2", "tc": "iproute2"}

# The limiter: how much may pass at once, and how long a packet may queue. The first
# must hold the largest segment the kernel hands down, with room to spare.
BURST = "512kb"
QUEUE = "20ms"


class HostsError(Exception):
    """The hosts could not be made; the message says what is missing."""


class _Holder:
    """The process whose life keeps one namespace set alive; it ends when its standard input closes."""

    def __init__(self, name: str, unshare: Sequence[str], script: Sequence[str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            ["unshare", *unshare, "--fork", "--kill-child", "sh", *script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A Ctrl-C is for this process, which then closes the pipe; not for every holder at once.
            start_new_session=True,
        )

    def await_ready(self) -> None:
        """Wait until the holder says which process it is, as seen from outside."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        if len(words) != 2 or words[0] != "ready":
            raise HostsError(f"{self.name} did not start: {self.close().strip() or 'it said nothing'}")
        self.pid = int(words[1])

    def close(self) -> str:
        """End the holder and with it everything inside; return what it had to complain about."""
        try:
            # Closes the holder's standard input, which is its sign to end.
            return self.process.communicate(timeout=10)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.communicate()[1]


class Hosts:
    """Some hosts on one network, as a context manager.

    `rate` limits each host's link both ways (for example "1gbit"; none means as fast
    as the machine goes). The project and its Python are there on every host, wherever
    they lie. `expose` names more files and folders of this machine, which the hosts see
    read-only although /tmp, /run and other mounts are their own. `interfaces` says which
    hosts call their link something else than eth0.
    """

    def __init__(
        self,
        count: int,
        rate: str | None = None,
        expose: Sequence[Path | str] = (),
        interfaces: Mapping[int, str] | None = None,
    ) -> None:
        if not 1 <= count <= MOST_HOSTS:
            raise HostsError(f"{count} hosts: it must be 1 to {MOST_HOSTS}")
        self.count = count
        self.rate = rate
        self.expose = [str(Path(path).resolve()) for path in expose]
        self._interfaces = dict(interfaces or {})
        self._holders: dict[int, _Holder] = {}
        self._switch: _Holder | None = None

    def __enter__(self) -> Hosts:
        _require_root_and_tools()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _start(self) -> None:
        announce = "read -r pid rest </proc/self/stat; echo ready $pid; read -r end"
        self._switch = _Holder("the switch", ["--net", "--pid"], ["-c", announce])
        for host in self.numbers():
            private = ["--net", "--mount", "--uts", "--ipc", "--pid", "--propagation", "private"]
            script = [str(INIT), self.name(host), self._etc_hosts(), *self.expose, *_own_folders()]
            self._holders[host] = _Holder(self.name(host), private, script)
        self._switch.await_ready()
        switch = ["nsenter", f"--net=/proc/{self._switch.pid}/ns/net"]
        _command([*switch, "ip", "link", "add", "br0", "type", "bridge"])
        _command([*switch, "ip", "link", "set", "br0", "up"])
        for host, holder in self._holders.items():
            holder.await_ready()
            port, link = f"v{host}", self.interface(host)
            inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
            # Made inside the switch's namespace, so that not even for a moment it is on this machine's network.
            peer = ["peer", "name", link, "netns", str(holder.pid)]
            _command([*switch, "ip", "link", "add", port, "type", "veth", *peer])
            _command([*switch, "ip", "link", "set", port, "master", "br0", "up"])
            _command([*inside, "ip", "link", "set", "lo", "up"])
            _command([*inside, "ip", "address", "add", f"{self.address(host)}/24", "dev", link])
            # Without asking first whether anybody has the address: nobody does, and asking takes a second.
            _command([*inside, "ip", "address", "add", f"{self.address6(host)}/64", "dev", link, "nodad"])
            _command([*inside, "ip", "link", "set", link, "up"])
            if self.rate:
                limiter = ["root", "tbf", "rate", self.rate, "burst", BURST, "latency", QUEUE]
                _command([*inside, "tc", "qdisc", "add", "dev", link, *limiter])
                _command([*switch, "tc", "qdisc", "add", "dev", port, *limiter])

    def _etc_hosts(self) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{self.address(host)} {self.name(host)}" for host in self.numbers()]
        lines += [f"{self.address6(host)} {self.name(host)}.v6" for host in self.numbers()]
        return "\n".join(lines) + "\n"

    def numbers(self) -> range:
        """Return the hosts' numbers, from 1."""
        return range(1, self.count + 1)

    def name(self, host: int) -> str:
        """Return what the host is called on its network."""
        return f"h{host}"

    def address(self, host: int) -> str:
        """Return the host's address on its network."""
        return f"{SUBNET}.{host}"

    def address6(self, host: int) -> str:
        """Return the host's IPv6 address on its network; the digits of its number are the last part."""
        return f"{SUBNET6}:{host}"

    def interface(self, host: int) -> str:
        """Return what the host calls its link."""
        return self._interfaces.get(host, "eth0")

    def path(self, host: int, inside: str) -> Path:
        """Return where this process finds a file of the host, to read and write it."""
        return Path(f"/proc/{self._holder(host).pid}/root{inside}")

    def first_process(self, host: int) -> int:
        """Return the number, on this machine, of the process whose end is the end of the host."""
        return self._holder(host).pid

    def process_namespace(self, host: int) -> str:
        """Return what all processes of the host, and no others, have as their `ns/pid`."""
        return str(Path(f"/proc/{self._holder(host).pid}/ns/pid").readlink())

    def _holder(self, host: int) -> _Holder:
        if host not in self._holders:
            raise HostsError(f"there is no host {host}: it was killed, or there are only {self.count}")
        return self._holders[host]

    def enter(self, host: int) -> list[str]:
        """Return what to put before a command to run it on the host; it dies with the process that started it."""
        pid = str(self._holder(host).pid)
        # `--wd` takes the holder's folder; with a path it would be one of this machine's.
        inside = ["--target", pid, "--net", "--mount", "--uts", "--ipc", "--pid", "--root", "--wd"]
        return ["nsenter", *inside, "setpriv", "--pdeathsig", "KILL"]

    def popen(
        self, host: int, command: Sequence[object], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command on the host: `subprocess.Popen` with `env` added to the environment."""
        words = [*self.enter(host), *(str(word) for word in command)]
        return subprocess.Popen(words, env={**os.environ, **(env or {})}, **options)

    def run(self, host: int, command: Sequence[object], env: Mapping[str, str] | None = None) -> str:
        """Run a command on the host to its end and return what it printed; raise if it failed."""
        with self.popen(host, command, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            output, errors = process.communicate()
        if process.returncode != 0:
            words = " ".join(str(word) for word in command)
            raise HostsError(f"{self.name(host)}: `{words}` failed with status {process.returncode}: {errors.strip()}")
        return output

    def traffic(self, host: int) -> tuple[int, int]:
        """Count the bytes that the host's link has received and sent so far."""
        received, sent = (
            int(self.run(host, ["cat", f"/sys/class/net/{self.interface(host)}/statistics/{direction}_bytes"]))
            for direction in ("rx", "tx")
        )
        return received, sent

    def kill(self, host: int) -> None:
        """End a host at once, as if its power had failed: not even its connections say goodbye."""
        self.set_link(host, "down")
        self._holders.pop(host).close()

    def set_link(self, host: int, state: str) -> None:
        """Cut the host off ("down") or connect it again ("up")."""
        inside = ["nsenter", f"--net=/proc/{self._holder(host).pid}/ns/net"]
        _command([*inside, "ip", "link", "set", self.interface(host), state])
        if state == "up":
            # It went with the link.
            address = [f"{self.address6(host)}/64", "dev", self.interface(host), "nodad"]
            _command([*inside, "ip", "address", "replace", *address])

    def close(self) -> None:
        """End all hosts. Nothing of them is left."""
        while self._holders:
            self._holders.popitem()[1].close()
        if self._switch is not None:
            self._switch.close()
            self._switch = None


def _own_folders() -> list[str]:
    """Return what hosts must see of this project and its Python, where that is not a part of the root file system."""
    repository = Path(__file__).resolve().parents[2]
    wanted = sorted({repository, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()})
    found: list[Path] = []
    for folder in wanted:
        elsewhere = folder.stat().st_dev != Path("/").stat().st_dev or folder.parts[1:2] in (
            ("tmp",),
            ("run",),
            ("dev",),
        )
        if elsewhere and not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    return [f"own:{folder}" for folder in found]


def _require_root_and_tools() -> None:
    if os.geteuid() != 0:
        raise HostsError("test hosts are made of network namespaces, which only root can make: run this as root")
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if missing:
        raise HostsError(f"test hosts need tools that are not installed: apt-get install {' '.join(missing)}")


def _command(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostsError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


def main() -> None:
    """Keep hosts up until Enter is pressed, for work by hand."""
    arguments = argparse.ArgumentParser(description="Make test hosts and keep them until Enter is pressed.")
    arguments.add_argument("count", type=int, help="how many hosts")
    arguments.add_argument("--rate", help="speed of each host's link, for example 1gbit")
    arguments.add_argument("--expose", action="append", default=[], help="a folder that hosts should see")
    options = arguments.parse_args()
    try:
        with Hosts(options.count, options.rate, options.expose) as hosts:
            for host in hosts.numbers():
                print(f"{hosts.name(host)}  {hosts.address(host)}  {' '.join(hosts.enter(host))} COMMAND")
            print("press Enter to end them", flush=True)
            sys.stdin.readline()
    except HostsError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
