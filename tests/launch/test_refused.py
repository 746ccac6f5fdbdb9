"""Hosts that do not let the launcher in: what it says, to the letter, and that it says it soon."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import troubles
from launcher import run, start
from sshd import HOME, PORT, SshHosts
from waiting import eventually

pytestmark = pytest.mark.usefixtures("quiet")

PASSWORD_ONLY, NO_KEY, UNKNOWN, CHANGED, CROWDED = 2001, 2002, 2003, 2004, 2005
CLOSED = 2099


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    """Give two hosts, the second with a door for each way to be refused."""
    with SshHosts(2) as made:
        made.serve(2, PASSWORD_ONLY, "PubkeyAuthentication no\nPasswordAuthentication yes")
        made.serve(2, NO_KEY, "AuthorizedKeysFile none")
        made.serve(2, UNKNOWN, known=False)
        made.serve(2, CHANGED, new_key=True)
        made.serve(2, CROWDED, "MaxStartups 1")
        # Without a name server there would be nobody to ask; this host's file is all that counts.
        made.write(1, "/etc/nsswitch.conf", "hosts: files\n")
        yield made


def refused(hosts: SshHosts, *words: object, port: int = PORT, other: str = "h2") -> str:
    """Start a job on both hosts, which must fail before anything runs, and return what the launcher says."""
    done = run(hosts, "-np", 2, "-H", f"h1:1,{other}:1", *words, "echo", "started", port=port)
    assert done.status != 0, done
    assert done.output == "", done
    return done.complaint()


def test_an_unknown_host_key(hosts: SshHosts) -> None:
    assert refused(hosts, port=UNKNOWN) == (
        "error: h2 (10.77.0.2, port 2003) presented a host key this machine does not know\n"
        "  ED25519  SHA256:<fingerprint>\n"
        "hint: compare it with the key on h2 (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then\n"
        "        ronde setup-ssh -H h2 -p 2003\n"
        "      or accept new keys once:  ronde run --accept-new-host-keys …\n"
    )


def test_an_unknown_host_key_shows_the_fingerprint_that_the_host_has(hosts: SshHosts) -> None:
    fingerprint = hosts.run(2, ["ssh-keygen", "-lf", "/etc/ssh/host_key"]).split()[1]
    done = run(hosts, "-np", 2, "-H", "h1,h2", "true", port=UNKNOWN)
    assert f"  ED25519  {fingerprint}\n" in done.errors


def test_unknown_host_keys_are_accepted_on_request_and_then_known(hosts: SshHosts) -> None:
    known = hosts.path(1, f"{HOME}/.ssh/known_hosts")
    before = known.read_text()
    try:
        for words in (["--accept-new-host-keys"], []):
            done = run(hosts, "-np", 2, "-H", "h1,h2", *words, "hostname", port=UNKNOWN)
            assert done.status == 0, done
            assert done.lines_of(1) == ["h2"]
    finally:
        known.write_text(before)


def test_a_changed_host_key(hosts: SshHosts) -> None:
    expected = (
        "error: h2 (10.77.0.2, port 2004) presented another host key than the one this machine knows\n"
        "  ED25519  SHA256:<fingerprint>\n"
        f"  the key known so far is in {HOME}/.ssh/known_hosts, line 5\n"
        "hint: if h2 was set up anew, compare it with the key on h2 (ssh-keygen -lf "
        "/etc/ssh/ssh_host_ed25519_key.pub),\n"
        "      and forget the old one:\n"
        f'        ssh-keygen -f "{HOME}/.ssh/known_hosts" -R "[h2]:2004"\n'
        "        ronde setup-ssh -H h2 -p 2004\n"
        "      if nobody changed it, somebody may be listening in; do not go on\n"
    )
    assert refused(hosts, port=CHANGED) == expected
    # To accept *new* keys does not mean to accept a changed one.
    assert refused(hosts, "--accept-new-host-keys", port=CHANGED) == expected


def test_a_refused_key(hosts: SshHosts) -> None:
    assert refused(hosts, port=NO_KEY) == (
        "error: h2 (10.77.0.2, port 2002) refused the key of user root (tried ~/.ssh/id_ed25519)\n"
        "hint: install it there:\n"
        "        ronde setup-ssh -H h2 -p 2002\n"
        "      or log in as somebody else: -H USER@h2\n"
    )


def test_a_server_that_takes_only_passwords(hosts: SshHosts) -> None:
    assert refused(hosts, port=PASSWORD_ONLY) == (
        "error: h2 (10.77.0.2, port 2001) takes no keys, only passwords, for user root; a launcher cannot type one\n"
        "  ssh: root@h2: Permission denied (password).\n"
        "hint: let its sshd take keys (PubkeyAuthentication yes in /etc/ssh/sshd_config), then\n"
        "        ronde setup-ssh -H h2 -p 2001\n"
    )


def test_a_port_where_nobody_listens(hosts: SshHosts) -> None:
    assert refused(hosts, port=CLOSED) == (
        "error: h2 (10.77.0.2, port 2099) refused the connection: nothing listens there\n"
        "hint: is its sshd running, and is 2099 its port? To start one there:\n"
        "        /usr/sbin/sshd -p 2099\n"
    )


def test_a_name_that_does_not_resolve(hosts: SshHosts) -> None:
    assert refused(hosts, other="gpu7") == (
        'error: there is no host called "gpu7"\n'
        "hint: is it spelled right? This machine looks it up with\n"
        "        getent ahosts gpu7\n"
        "      an address, or a line in /etc/hosts or ~/.ssh/config, works as well\n"
    )


def test_a_host_that_drops_packets(hosts: SshHosts) -> None:
    with troubles.dropping_packets(hosts, 2, sender=1):
        done = run(hosts, "-np", 2, "-H", "h1,h2", "--ssh-args=-o ConnectTimeout=2", "true")
    assert done.complaint() == (
        "error: h2 (10.77.0.2, port 12345) did not answer within <time>\n"
        "hint: is it up, and does a firewall let the port through? Try\n"
        "        ssh -v -p 12345 -o ConnectTimeout=2 h2 true\n"
    )
    assert "within 2 s" in done.errors, "the time is the one that was waited"


def test_waiting_is_not_silent(hosts: SshHosts) -> None:
    with (
        troubles.dropping_packets(hosts, 2, sender=1),
        start(hosts, "-np", 2, "-H", "h1,h2", "--ssh-args=-o ConnectTimeout=60", "true") as job,
    ):
        eventually(lambda: "h2" in job.text("errors"), "a word about h2")
        assert job.process.poll() is None, "it was said while it waited"
        os.kill(job.wait_for("launcher").pid, signal.SIGINT)
        job.end()


def test_an_address_that_nobody_has(hosts: SshHosts) -> None:
    said = refused(hosts, "--ssh-args=-o ConnectTimeout=5", other="10.77.0.99")
    assert said == (
        "error: 10.77.0.99 (port 12345) cannot be reached: it is down, or there is no route to it\n"
        "hint: is the address right, and the network up? Look at\n"
        "        ip route get 10.77.0.99\n"
    )


def test_a_crowded_server_is_tried_again(hosts: SshHosts) -> None:
    # The server takes one login at a time and drops all others; four agents knock at once, by four names.
    names = ["h2", "10.77.0.2", "h2.v6", "[fd00:77::2]"]
    done = run(hosts, "-np", 4, "-H", ",".join(f"{name}:1" for name in names), "hostname", port=CROWDED)
    assert done.status == 0, done
    assert [done.lines_of(rank) for rank in range(4)] == [["h2"]] * 4


def test_no_ssh_on_this_machine(hosts: SshHosts) -> None:
    with troubles.hidden(hosts, 1, ["/usr/bin/ssh"]):
        said = refused(hosts)
    assert said == (
        "error: cannot start ssh on this machine: No such file or directory (os error 2)\n"
        "hint: install it, on Debian and Ubuntu with\n"
        "        apt-get install openssh-client\n"
        "      or name another program with RONDE_SSH\n"
    )


def test_every_host_that_refuses_is_named(hosts: SshHosts) -> None:
    done = run(hosts, "-np", 3, "-H", "gpu7,h2,gpu8", "true", port=CLOSED)
    assert done.status != 0
    for name in ("gpu7", "gpu8", "h2 (10.77.0.2, port 2099)"):
        assert name in done.complaint(), done
