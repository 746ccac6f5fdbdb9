"""Addresses are found by trying: hosts with several networks, other interface names, slow links, ports in a range."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import troubles
from launcher import PROGRAMS, Finished, run
from sshd import SshHosts

pytestmark = pytest.mark.usefixtures("quiet")

EVERYWHERE = ("-np", 3, "-H", "h1,h2,h3")


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    """Give three hosts whose links have different names."""
    with SshHosts(3, interfaces={2: "ens3", 3: "enp0s31f6"}) as made:
        yield made


def sums(hosts: SshHosts, *options: object, seconds: float = 60.0) -> Finished:
    """Run ranks that add something over all hosts; they check the sum themselves."""
    done = run(hosts, *EVERYWHERE, *options, "python", PROGRAMS / "sums.py", seconds=seconds)
    assert done.status == 0, done
    for rank in range(3):
        assert done.lines_of(rank) == [f"step 0 on h{rank + 1}: 6"], done
    return done


def test_interfaces_may_have_different_names(hosts: SshHosts) -> None:
    done = sums(hosts)
    for host in (1, 2, 3):
        row = rf"^  h{host}  1 rank +{hosts.interface(host)} +{re.escape(hosts.address(host))}\b"
        assert re.search(row, done.errors, re.MULTILINE), done


def test_a_network_that_others_do_not_have_is_not_used(hosts: SshHosts) -> None:
    with troubles.unreachable_interface(hosts, 2), troubles.unreachable_interface(hosts, 3, address="192.168.56.7"):
        done = sums(hosts, "--verbose")
    assert re.search(r"h3 -> h2: 10\.77\.0\.2 \(ens3\)", done.errors), done
    assert "192.168.55.7 (aaa0) ruled out: no route to that network" in done.errors, done


def test_an_address_that_answers_on_every_host_by_itself_is_not_used(hosts: SshHosts) -> None:
    with troubles.private_bridge(hosts, [1, 2, 3]):
        done = sums(hosts, "--verbose")
    assert "172.17.0.1 (docker0) ruled out: the dialing host has that address too" in done.errors, done


def test_hosts_that_reach_each_other_by_one_family_only_use_that_one(hosts: SshHosts) -> None:
    # IPv4 between 2 and 3 is lost, IPv6 works; the launcher's host reaches both by both.
    hosts.run(2, ["ip", "route", "add", "blackhole", hosts.address(3)])
    try:
        sums(hosts)
    finally:
        hosts.run(2, ["ip", "route", "delete", "blackhole", hosts.address(3)])


def test_an_interface_may_be_named(hosts: SshHosts) -> None:
    with troubles.unreachable_interface(hosts, 2):
        done = sums(hosts, "--network-interfaces", "eth0,ens3,enp0s31f6", "--verbose")
    assert "aaa0" not in done.errors, "the other interface was not even tried"


def test_a_named_interface_that_nobody_has_is_an_error(hosts: SshHosts) -> None:
    done = run(hosts, *EVERYWHERE, "--network-interfaces", "ib0", "true")
    assert done.status != 0
    # Whichever of them answers first.
    nobody = r"error: h\d: there is no network interface ib0 with an address here; there are lo, \w+\n"
    assert re.fullmatch(nobody, done.complaint()), done


def test_ports_come_from_the_range(hosts: SshHosts) -> None:
    allowed = set(range(20000, 20011))
    done = run(hosts, *EVERYWHERE, "--port-range", "20000-20010", "python", PROGRAMS / "listening.py")
    assert done.status == 0, done
    lines = [line for rank in range(3) for line in done.lines_of(rank)]
    ports = {int(line.split()[-1]) for line in lines if line.startswith("listens at ")}
    assert ports - {hosts.port} <= allowed, "only the ssh server listens elsewhere"
    assert ports & allowed, "somebody listens for the other hosts"


def test_two_hosts_that_cannot_reach_each_other_are_connected_through_the_launcher(hosts: SshHosts) -> None:
    with troubles.dropping_packets(hosts, 2, sender=3), troubles.dropping_packets(hosts, 3, sender=2):
        done = run(hosts, *EVERYWHERE, "python", PROGRAMS / "swaps.py")
    assert done.status == 0, done
    assert [done.lines_of(rank) for rank in range(3)] == [["swapped"]] * 3, done
    assert (
        "warning: h3 and h2 do not reach each other; what their ranks say goes through this machine, which is slow\n"
        in done.told()
    ), done


def test_a_slow_host_only_takes_longer(hosts: SshHosts) -> None:
    with troubles.slow_link(hosts, 3, "256kbit"):
        sums(hosts, seconds=60)


def test_a_host_where_nothing_gets_through_for_a_while_is_named(hosts: SshHosts) -> None:
    with troubles.dropping_packets(hosts, 3, sender=1):
        done = run(hosts, *EVERYWHERE, "--start-timeout", 5, "true")
    assert done.status != 0
    assert "waiting for h3 (ssh is connecting)\n" in done.told(), done
    assert done.complaint() == (
        "error: h3 was not ready within <time>: ssh is connecting\n"
        "hint: give it more time (--start-timeout), or look: ronde doctor -H h3\n"
    )
    assert "within 5 s" in done.errors, "the time is the one that was given"
