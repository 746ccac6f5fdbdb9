"""What can be wrong with a host: each trouble is a context manager that makes it and takes it away again.

    with dropping_packets(hosts, 2, sender=1):
        ...   # whatever host 1 sends to host 2 is lost without a word

So many cases can share one set of hosts, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hosts import Hosts
from sshd import HOME, SshHosts


@contextmanager
def dropping_packets(hosts: Hosts, host: int, sender: int) -> Iterator[None]:
    """Lose everything between two hosts: no answer, no refusal."""
    routes = [hosts.address(sender), hosts.address6(sender)]
    for route in routes:
        hosts.run(host, ["ip", "route", "add", "blackhole", route])
    try:
        yield
    finally:
        for route in routes:
            hosts.run(host, ["ip", "route", "delete", "blackhole", route])


@contextmanager
def slow_link(hosts: Hosts, host: int, rate: str) -> Iterator[None]:
    """Let the host send only so fast, for example "512kbit"; a packet queues for up to half a second."""
    device = ["dev", hosts.interface(host), "root"]
    hosts.run(host, ["tc", "qdisc", "add", *device, "tbf", "rate", rate, "burst", "16kb", "latency", "500ms"])
    try:
        yield
    finally:
        hosts.run(host, ["tc", "qdisc", "delete", *device])


@contextmanager
def private_bridge(hosts: Hosts, members: Sequence[int], address: str = "172.17.0.1") -> Iterator[None]:
    """Give each host a bridge of its own with one and the same address, as container engines do.

    Nobody is behind it. A connection to that address succeeds everywhere, but always ends on the host it began on.
    """
    for host in members:
        hosts.run(host, ["ip", "link", "add", "docker0", "type", "bridge"])
        hosts.run(host, ["ip", "address", "add", f"{address}/16", "dev", "docker0"])
        hosts.run(host, ["ip", "link", "set", "docker0", "up"])
    try:
        yield
    finally:
        for host in members:
            hosts.run(host, ["ip", "link", "delete", "docker0"])


@contextmanager
def unreachable_interface(hosts: Hosts, host: int, name: str = "aaa0", address: str = "192.168.55.7") -> Iterator[None]:
    """Give the host one more network, which no other host has; by its name it comes first in every list."""
    hosts.run(host, ["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-end"])
    for end in (name, f"{name}-end"):
        hosts.run(host, ["ip", "link", "set", end, "up"])
    hosts.run(host, ["ip", "address", "add", f"{address}/24", "dev", name])
    try:
        yield
    finally:
        hosts.run(host, ["ip", "link", "delete", name])


@contextmanager
def login_shell(hosts: SshHosts, host: int, shell: str = "/bin/bash", bashrc: str = "") -> Iterator[None]:
    """Give root another login shell, and a `.bashrc`, which bash also reads when it is only to run a command."""
    accounts = hosts.path(host, "/etc/passwd").read_text()
    first, rest = accounts.split("\n", 1)
    hosts.write(host, "/etc/passwd", f"{first.rsplit(':', 1)[0]}:{shell}\n{rest}")
    hosts.write(host, f"{HOME}/.bashrc", bashrc)
    try:
        yield
    finally:
        hosts.write(host, "/etc/passwd", accounts)
        hosts.path(host, f"{HOME}/.bashrc").unlink()


@contextmanager
def hidden(hosts: Hosts, host: int, paths: Sequence[str]) -> Iterator[None]:
    """Make files and folders of a host disappear, and bring them back."""
    # The folder that takes them must be on the same file system, where moving is renaming.
    hosts.path(host, "/hidden").mkdir()
    for number, path in enumerate(paths):
        hosts.run(host, ["mv", path, f"/hidden/{number}"])
    try:
        yield
    finally:
        for number, path in enumerate(paths):
            hosts.run(host, ["mv", f"/hidden/{number}", path])
        hosts.run(host, ["rmdir", "/hidden"])


@contextmanager
def full_disk(hosts: Hosts, host: int, folders: Sequence[str]) -> Iterator[None]:
    """Replace folders of a host by disks that have no room left; what is in them is out of sight meanwhile."""
    mounted: list[str] = []
    try:
        for folder in folders:
            hosts.run(host, ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=8", "tmpfs", folder])
            mounted.append(folder)
            hosts.run(host, ["sh", "-c", f"! head -c 8192 /dev/zero >{folder}/filled 2>/dev/null"])
        yield
    finally:
        for folder in reversed(mounted):
            hosts.run(host, ["umount", "--lazy", folder])


@contextmanager
def cut_off(hosts: Hosts, host: int) -> Iterator[None]:
    """Take the host off the network, as if its cable were pulled, and put it back afterwards."""
    hosts.set_link(host, "down")
    try:
        yield
    finally:
        hosts.set_link(host, "up")
