"""`ronde doctor` on real hosts: what it finds, what it calls a problem, and that it leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import troubles
from launcher import Finished, plain, start_command
from sshd import HOME, PORT, SshHosts

pytestmark = pytest.mark.usefixtures("quiet")

NO_KEY, UNKNOWN = 2002, 2003
SKIPPED = "\N{EN DASH}"


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    """Give three hosts, the third with doors that do not open."""
    with SshHosts(3) as made:
        made.serve(3, NO_KEY, "AuthorizedKeysFile none")
        made.serve(3, UNKNOWN, known=False)
        yield made


def doctor(hosts: SshHosts, *words: object, port: int = PORT) -> Finished:
    with start_command(hosts, ["ronde", "doctor", "-p", port, *words]) as job:
        return job.end()


def report(hosts: SshHosts, *words: object, port: int = PORT) -> dict[str, Any]:
    done = doctor(hosts, "--json", *words, port=port)
    found: dict[str, Any] = json.loads(done.output)
    assert found["healthy"] == (done.status == 0), done
    return found


def problems(found: dict[str, Any], check: str) -> list[dict[str, Any]]:
    return [problem for problem in found["problems"] if problem["check"] == check]


def test_healthy_hosts_are_examined_and_measured(hosts: SshHosts) -> None:
    found = report(hosts, "-H", "h1:1,h2:1,h3:1")
    assert found["healthy"], found
    assert [host["findings"]["hostname"] for host in found["hosts"]] == ["h1", "h2", "h3"]
    assert [host["this_machine"] for host in found["hosts"]] == [True, False, False]
    for host in found["hosts"][1:]:
        checks = [host[check] for check in ("resolves", "port_open", "host_key", "login", "agent")]
        assert checks == ["good"] * 5, host
        assert abs(host["clock_ahead"]) < 0.5, "one machine, one clock"
        assert host["findings"]["python"]["packages"]["ronde"] == found["ronde"]
    pairs = {(pair["from"], pair["to"]): pair for pair in found["pairs"]}
    assert set(pairs) == {("h1", "h2"), ("h1", "h3"), ("h2", "h3")}
    for (one, other), pair in pairs.items():
        ends = (pair["forward"]["address"], pair["backward"]["address"])
        numbers = [int(name[1:]) for name in (other, one)]
        for end, number in zip(ends, numbers):
            assert end in (hosts.address(number), hosts.address6(number)), pair
        assert min(pair["bits_forward"], pair["bits_backward"]) > 1e6, pair


def test_a_folder_that_only_one_host_has_is_a_warning(hosts: SshHosts) -> None:
    found = report(hosts, "-H", "h1:1,h2:1")
    assert [host["findings"]["folder"] for host in found["hosts"]] == ["shared", "own"]
    (problem,) = problems(found, "folder")
    assert (problem["severity"], problem["hosts"]) == ("warning", ["h2"])
    assert not list(hosts.path(1, HOME).glob(".ronde-doctor-*")), "its mark was left there"


@pytest.mark.parametrize(
    ("port", "check", "what", "fix"),
    [
        (NO_KEY, "login", "refused the key of user root (tried ~/.ssh/id_ed25519)", "ronde setup-ssh -H h3 -p 2002"),
        (
            UNKNOWN,
            "host_key",
            "presented a host key this machine does not know: ED25519",
            "ronde setup-ssh -H h3 -p 2003",
        ),
        (2099, "port", "refused the connection: nothing listens there", "/usr/sbin/sshd -p 2099"),
    ],
)
def test_a_host_that_does_not_let_us_in_is_named_with_the_fix(
    hosts: SshHosts, port: int, check: str, what: str, fix: str
) -> None:
    found = report(hosts, "-H", "h3:1", port=port)
    assert not found["healthy"]
    (problem,) = found["problems"]
    assert (problem["severity"], problem["check"], problem["hosts"]) == ("error", check, ["h3"])
    assert problem["what"].startswith(f"h3 ({hosts.address(3)}, port {port}) {what}"), problem
    assert problem["fix"] == fix
    assert found["hosts"][0]["findings"] is None


def test_the_table_shows_who_is_well_and_who_is_not(hosts: SshHosts) -> None:
    hosts.write(1, "/etc/nsswitch.conf", "hosts: files\n")
    done = doctor(hosts, "-H", "h2,gpu7")
    assert done.status == 1, done
    rows = [line.split() for line in done.output.splitlines()]
    assert rows[0][:7] == ["name", "port", "host", "key", "login", "ronde", "python"]
    assert rows[1][:5] == ["h2", "✓", "✓", "✓", "✓"], done
    assert rows[2] == ["gpu7", "✗", *[SKIPPED] * 7], done
    assert '  gpu7: there is no host called "gpu7"\n        fix:  getent ahosts gpu7\n' in done.output
    assert sorted(plain(done.errors).splitlines()) == ["gpu7 could not be examined (1 of 2)", "h2 examined (2 of 2)"]


def test_hosts_that_do_not_reach_each_other_are_a_problem(hosts: SshHosts) -> None:
    with troubles.dropping_packets(hosts, 2, sender=3), troubles.dropping_packets(hosts, 3, sender=2):
        found = report(hosts, "-H", "h1:1,h2:1,h3:1")
    (problem,) = problems(found, "reach")
    assert (problem["severity"], problem["hosts"]) == ("error", ["h2", "h3"])
    assert problem["what"].startswith("neither reaches the other: "), problem
