"""The hosts with ssh servers, and the troubles they can have, are what they claim to be. Needs root."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import troubles
from hosts import Hosts, HostsError
from processes import Process, processes_of
from sshd import HOME, SshHosts
from waiting import eventually


@pytest.fixture(scope="module")
def pair() -> Iterator[SshHosts]:
    with SshHosts(2, interfaces={2: "ens3"}) as hosts:
        yield hosts


def login(hosts: SshHosts, to: str = "h2", command: str = "hostname", port: int | None = None, *options: str) -> str:
    """Log in from host 1 and return what the command printed; raise with what ssh said if that failed."""
    # Of two that say the same the first counts.
    asking = [*options, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    return hosts.run(1, ["ssh", *asking, "-p", port or hosts.port, to, command])


def login_in_vain(hosts: SshHosts, to: str = "h2") -> str:
    """Log in where nobody answers."""
    return login(hosts, to, "hostname", None, "-o", "ConnectTimeout=1")


def test_eight_hosts_are_up_at_once() -> None:
    with SshHosts(8) as hosts:
        assert login(hosts, "h8") == "h8\n"


@pytest.mark.parametrize("name", ["h2", "10.77.0.2", "h2.v6", "fd00:77::2"])
def test_a_host_lets_in_whoever_has_the_key(pair: SshHosts, name: str) -> None:
    assert login(pair, name) == "h2\n"


def test_the_home_is_the_hosts_own(pair: SshHosts) -> None:
    found = login(pair, command="cd; pwd; echo $HOME; ls -A")
    assert found.splitlines() == [HOME, HOME, ".ssh"]


def test_a_login_leaves_no_process(pair: SshHosts) -> None:
    before = set(processes_of(pair, 2))
    login(pair, command="setsid -f true")
    eventually(
        lambda: before.issuperset(processes_of(pair, 2)),
        lambda: "\n".join(str(process) for process in processes_of(pair, 2)),
    )


def test_processes_are_listed_with_their_words_and_only_on_their_host(pair: SshHosts) -> None:
    words = ("sleep", "1234")  # sleep: is there until it is killed
    with pair.popen(2, ["env", "MARK=here", *words]) as sleeper:
        try:
            found = wait_for_words(pair, 2, words)
            assert found.name == words[0]
            assert "MARK=here" in found.environment().splitlines()
            assert not any(words[1] in process.words for process in processes_of(pair, 1))
        finally:
            sleeper.kill()


def wait_for_words(hosts: Hosts, host: int, words: tuple[str, ...]) -> Process:
    """Return the first process that has this command line, and so is no longer one that starts it."""
    return eventually(
        lambda: next((process for process in processes_of(hosts, host) if process.words == words), None),
        lambda: f"a process {words}: {processes_of(hosts, host)}",
    )


@pytest.mark.parametrize(
    ("port", "rules", "new_key", "known", "complaint"),
    [
        (2001, "PubkeyAuthentication no\nPasswordAuthentication yes", False, True, r"Permission denied \(password\)"),
        (2002, "AuthorizedKeysFile none", False, True, r"Permission denied \(publickey\)"),
        (2003, "", False, False, "Host key verification failed"),
        (2004, "", True, True, "REMOTE HOST IDENTIFICATION HAS CHANGED"),
    ],
)
def test_another_door_has_rules_of_its_own(
    pair: SshHosts, port: int, rules: str, new_key: bool, known: bool, complaint: str
) -> None:
    pair.serve(2, port, rules, new_key=new_key, known=known)
    with pytest.raises(HostsError, match=complaint):
        login(pair, port=port)
    assert login(pair) == "h2\n"


def test_dropped_packets_are_lost_without_a_word(pair: SshHosts) -> None:
    with troubles.dropping_packets(pair, 2, sender=1), pytest.raises(HostsError, match="timed out"):
        login_in_vain(pair)
    assert login(pair) == "h2\n"


def test_a_slow_link_takes_its_time(pair: SshHosts) -> None:
    with troubles.slow_link(pair, 2, "512kbit"):
        begin = time.monotonic()
        assert len(login(pair, command="head -c 100000 /dev/zero")) == 100_000
        # All but what passes at once, at 64,000 bytes a second.
        assert time.monotonic() - begin > 1.0


def test_a_private_bridge_answers_on_every_host_by_itself(pair: SshHosts) -> None:
    with troubles.private_bridge(pair, [1, 2]):
        trusting = "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR"
        assert login(pair, "172.17.0.1", "hostname", None, *trusting) == "h1\n"


def test_an_unreachable_interface_has_an_address_that_nobody_else_reaches(pair: SshHosts) -> None:
    with troubles.unreachable_interface(pair, 2):
        assert "192.168.55.7" in pair.run(2, ["ip", "address"])
        with pytest.raises(HostsError, match=r"unreachable|timed out"):
            login_in_vain(pair, "192.168.55.7")


def test_a_noisy_shell_prints_before_the_command_does(pair: SshHosts) -> None:
    with troubles.login_shell(pair, 2, bashrc="echo welcome"):
        assert login(pair) == "welcome\nh2\n"
    assert login(pair) == "h2\n"


def test_hidden_files_come_back(pair: SshHosts) -> None:
    with troubles.hidden(pair, 2, ["/etc/hostname"]), pytest.raises(HostsError, match="No such file"):
        pair.run(2, ["cat", "/etc/hostname"])
    assert pair.run(2, ["cat", "/etc/hostname"]) == "h2\n"


def test_a_full_disk_takes_nothing(pair: SshHosts) -> None:
    with troubles.full_disk(pair, 2, ["/tmp"]), pytest.raises(HostsError, match="No space left"):
        pair.run(2, ["cp", "/etc/passwd", "/tmp/file"])
    pair.run(2, ["cp", "/etc/passwd", "/tmp/file"])


def test_a_host_that_was_cut_off_comes_back(pair: SshHosts) -> None:
    with troubles.cut_off(pair, 2), pytest.raises(HostsError, match=r"timed out|No route"):
        login_in_vain(pair)
    assert login(pair) == "h2\n"
    assert login(pair, "h2.v6") == "h2\n"


def test_links_have_the_names_they_were_given(pair: SshHosts) -> None:
    assert pair.interface(1) == "eth0"
    assert "ens3" in pair.run(2, ["ip", "-brief", "address"])
    before = pair.traffic(2)
    login(pair)
    assert pair.traffic(2) > before


def test_this_machine_has_no_part_in_it(pair: SshHosts) -> None:
    assert pair.run(1, ["hostname"]) != socket.gethostname() + "\n"
    assert not Path(HOME).exists()
    assert str(Path("/proc/self/ns/pid").readlink()) != pair.process_namespace(1)
