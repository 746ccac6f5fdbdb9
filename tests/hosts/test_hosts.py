"""The test hosts are what they claim to be: reachable by network, and by nothing else. Needs root."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import Hosts, HostsError

# Takes one connection, reads it to its end and prints how many bytes came.
RECEIVER = """
import socket
server = socket.create_server(("", 0))
print(server.getsockname()[1], flush=True)
connection, taken = server.accept()[0], 0
while block := connection.recv(1 << 16):
    taken += len(block)
connection.sendall(b"thanks")
print(taken, flush=True)
"""
SENDER = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(bytes(int(sys.argv[3])))
connection.shutdown(socket.SHUT_WR)
assert connection.recv(16) == b"thanks"
"""
CONNECT_UNIX = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1].replace("@", "\\0"))
except OSError as error:
    print("no:", error)
else:
    print("connected")
"""


def two_hosts(rate: str | None = None) -> Hosts:
    """Make two hosts that see this Python, wherever it is installed."""
    return Hosts(2, rate, expose=[sys.prefix])


@pytest.fixture(scope="module")
def pair() -> Iterator[Hosts]:
    with two_hosts() as hosts:
        yield hosts


def send(hosts: Hosts, size: int) -> int:
    """Send so many bytes from host 1 to host 2 by name and return how many arrived."""
    with hosts.popen(2, [sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        hosts.run(1, [sys.executable, "-c", SENDER, "h2", port, str(size)])
        return int(receiver.stdout.readline())


def test_a_host_reaches_another_by_name(pair: Hosts) -> None:
    assert pair.run(1, ["hostname"]).strip() == "h1"
    assert send(pair, 12345) == 12345


def test_the_links_counters_show_what_was_sent(pair: Hosts) -> None:
    size = 4 << 20
    before = [pair.traffic(host) for host in (1, 2)]
    send(pair, size)
    after = [pair.traffic(host) for host in (1, 2)]
    sent, received = after[0][1] - before[0][1], after[1][0] - before[1][0]
    # Headers come on top, and what TCP sends again where the other side is slow to answer. Nothing is counted twice.
    assert size < sent < 2 * size
    assert size < received < 2 * size


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/var/tmp", "/run"])
def test_a_file_written_on_one_host_exists_nowhere_else(pair: Hosts, folder: str) -> None:
    name = f"{folder}/ronde-test-hosts-{os.getpid()}"
    pair.run(1, ["sh", "-c", f"echo here >{name}"])
    assert pair.run(1, ["cat", name]) == "here\n"
    with pytest.raises(HostsError, match="No such file"):
        pair.run(2, ["cat", name])
    assert not Path(name).exists()


def test_a_command_starts_in_the_root_of_its_host(pair: Hosts) -> None:
    assert pair.run(1, ["sh", "-c", "echo own >/own-root; cat own-root; exec /bin/pwd"]) == "own\n/\n"


def test_processes_of_one_host_are_unknown_on_another(pair: Hosts) -> None:
    marker = f"1234.{os.getpid()}"
    words = ["sleep", marker]  # sleep: is there until it is killed
    sleeper = pair.popen(1, words)
    listing = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]
    try:
        while " ".join(words) not in pair.run(1, listing):
            assert sleeper.poll() is None
        assert " ".join(words) not in pair.run(2, listing)
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_unix_socket_outside_cannot_be_reached_from_a_host(pair: Hosts, kind: str) -> None:
    name = f"/var/tmp/ronde-test-hosts-{os.getpid()}.socket"
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name if kind == "path" else "\0" + name)
            server.listen()
            spelled = name if kind == "path" else "@" + name
            assert subprocess.check_output([sys.executable, "-c", CONNECT_UNIX, spelled], text=True) == "connected\n"
            assert pair.run(1, [sys.executable, "-c", CONNECT_UNIX, spelled]).startswith("no:")
    finally:
        Path(name).unlink(missing_ok=True)


def test_exposed_folders_can_be_read_but_not_written(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("for all hosts")
    with Hosts(1, expose=[tmp_path]) as hosts:
        assert hosts.run(1, ["cat", tmp_path / "given"]) == "for all hosts"
        with pytest.raises(HostsError, match="Read-only"):
            hosts.run(1, ["touch", tmp_path / "mine"])


def test_a_limited_link_is_no_faster_than_its_limit() -> None:
    with two_hosts(rate="100mbit") as hosts:
        start = time.monotonic()
        assert send(hosts, 4 << 20) == 4 << 20
        # All but the limiter's bucket of half a MiB takes its time: (3.5 MiB) / (12.5 MB/s).
        assert time.monotonic() - start > 0.28


def test_two_networks_stand_side_by_side_with_the_same_addresses() -> None:
    with two_hosts() as first, two_hosts() as second:
        assert first.address(1) == second.address(1)
        assert send(first, 100_000) == 100_000
        # Hosts that nobody talks to still make themselves known to their neighbours.
        assert second.traffic(2)[0] < 50_000
        assert send(second, 1000) == 1000


def test_a_process_on_a_host_dies_with_the_one_that_started_it(pair: Hosts) -> None:
    command = ["sh", "-c", "echo up; exec sleep 1000"]  # sleep: is there until it is killed
    with pair.popen(1, command, stdout=subprocess.PIPE, text=True) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "up\n"
        sleeper.kill()
        # The pipe ends only when the last process that holds it has ended.
        assert sleeper.stdout.read() == ""


def test_a_killed_host_is_gone_and_the_others_stay() -> None:
    with Hosts(2) as hosts:
        with hosts.popen(2, ["sleep", "1000"]) as sleeper:  # sleep: is there until it is killed
            hosts.kill(2)
            assert sleeper.wait(timeout=60) != 0
        with pytest.raises(HostsError, match="no host 2"):
            hosts.run(2, ["true"])
        assert hosts.run(1, ["hostname"]) == "h1\n"


def test_nothing_is_left_when_the_driver_is_killed() -> None:
    program = (
        "from hosts import Hosts\n"
        "with Hosts(2) as hosts:\n"
        "    print(*(hosts.enter(host)[2] for host in hosts.numbers()), flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        holders = [os.pidfd_open(int(pid)) for pid in driver.stdout.readline().split()]
        assert len(holders) == 2
        driver.send_signal(signal.SIGKILL)
    for holder in holders:
        # A process's descriptor becomes readable when it ends.
        assert select.select([holder], [], [], 30)[0] == [holder]
        os.close(holder)
