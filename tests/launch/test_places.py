"""Ranks on many hosts: where they are put, what they are told, and over which links they reach each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher import PROGRAMS, Finished, run, start_command
from quiet import Quiet
from sshd import HOME, PORT, SshHosts

pytestmark = pytest.mark.usefixtures("quiet")


class Said(NamedTuple):
    """What a rank was told by the launcher, and the machine it found itself on."""

    machine: str
    named: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def places(done: Finished, size: int) -> list[Said]:
    """Return every rank's place by its own words."""
    assert done.status == 0, done
    found = []
    for rank in range(size):
        (words,) = (line.split()[1:] for line in done.lines_of(rank) if line.startswith("place "))
        found.append(Said(words[0], words[1], *(int(word) for word in words[2:])))
    return found


def check_links(done: Finished, machines: Sequence[str]) -> None:
    """Make sure that ranks of one host met in shared memory, and others over TCP."""
    for rank, machine in enumerate(machines):
        (report,) = (json.loads(line) for line in done.lines_of(rank) if '"links"' in line)
        expected = [
            "Itself" if other == rank else "SharedMemory" if there == machine else "Tcp"
            for other, there in enumerate(machines)
        ]
        assert report["links"] == expected, f"rank {rank} on {machine}"


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_rank_on_each_of_many_hosts(hosts: SshHosts, probe: Path, count: int) -> None:
    names = [f"h{number}" for number in range(1, count + 1)]
    done = run(hosts, "-np", count, "-H", ",".join(names), PROGRAMS / "place.sh", probe)
    found = places(done, count)
    assert [said.machine for said in found] == names
    for rank, said in enumerate(found):
        assert said[2:] == (rank, count, 0, 1, rank, count), said
    check_links(done, names)


def test_sixty_four_hosts_are_as_easy_as_two() -> None:
    with SshHosts(64) as many:
        quiet = Quiet(many)
        names = ",".join(many.name(host) for host in many.numbers())
        done = run(many, "-np", 64, "-H", names, "hostname", seconds=120)
        quiet.await_again()
    assert done.status == 0, done
    assert [done.lines_of(rank) for rank in range(64)] == [[f"h{rank + 1}"] for rank in range(64)]


def test_unequal_hosts(hosts: SshHosts, probe: Path) -> None:
    done = run(hosts, "-np", 6, "-H", "h1:5,h2:1", PROGRAMS / "place.sh", probe)
    found = places(done, 6)
    assert [said.machine for said in found] == ["h1"] * 5 + ["h2"]
    assert [(said.local_rank, said.local_size) for said in found] == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5), (0, 1)]
    assert [(said.cross_rank, said.cross_size) for said in found] == [(0, 2), (0, 1), (0, 1), (0, 1), (0, 1), (1, 2)]
    check_links(done, [said.machine for said in found])


def test_no_rank_where_the_launcher_is(hosts: SshHosts, probe: Path) -> None:
    done = run(hosts, "-np", 3, "-H", "h2:2,h3:1", PROGRAMS / "place.sh", probe)
    machines = [said.machine for said in places(done, 3)]
    assert machines == ["h2", "h2", "h3"]
    check_links(done, machines)


def test_fewer_ranks_than_slots_fill_hosts_in_order(hosts: SshHosts, probe: Path) -> None:
    done = run(hosts, "-np", 3, "-H", "h1:2,h2:2,h3:2", PROGRAMS / "place.sh", probe)
    assert [said.machine for said in places(done, 3)] == ["h1", "h1", "h2"]


def test_the_users_own_command_line(hosts: SshHosts) -> None:
    command = ["horovodrun", "-np", 4, "-H", "localhost:2,h2:2", "-p", PORT, "python", PROGRAMS / "sums.py"]
    with start_command(hosts, command) as job:
        done = job.end()
    assert done.status == 0, done
    machines = ("h1", "h1", "h2", "h2")
    for rank, machine in enumerate(machines):
        assert f"[{rank}]<stdout>:step 0 on {machine}: 10" in done.output.splitlines(), done


@pytest.mark.parametrize("name", ["h2", "10.77.0.2", "h2.v6", "fd00:77::2", "[fd00:77::2]"])
def test_a_host_by_any_of_its_names(hosts: SshHosts, probe: Path, name: str) -> None:
    listed = f"h1:1,{name}:1" if not name.startswith("fd") else f"h1:1,[{name}]:1"
    done = run(hosts, "-np", 2, "-H", listed, PROGRAMS / "place.sh", probe)
    assert [said.machine for said in places(done, 2)] == ["h1", "h2"]
    check_links(done, ["h1", "h2"])


def test_hosts_that_have_ipv6_only(hosts: SshHosts, probe: Path) -> None:
    for host in (2, 3):
        hosts.run(host, ["ip", "address", "delete", f"{hosts.address(host)}/24", "dev", hosts.interface(host)])
    try:
        done = run(hosts, "-np", 3, "-H", "h1:1,h2.v6:1,h3.v6:1", PROGRAMS / "place.sh", probe)
    finally:
        for host in (2, 3):
            hosts.run(host, ["ip", "address", "add", f"{hosts.address(host)}/24", "dev", hosts.interface(host)])
    machines = [said.machine for said in places(done, 3)]
    assert machines == ["h1", "h2", "h3"]
    check_links(done, machines)


def test_a_hostfile_with_comments(hosts: SshHosts, probe: Path) -> None:
    text = "# our machines\n\nh2 slots=2   # the big one\n   h3\n# h4 slots=8\nh5:1\n"
    hosts.write(1, f"{HOME}/hostfile", text)
    try:
        done = run(hosts, "-np", 4, "--hostfile", "hostfile", PROGRAMS / "place.sh", probe)
    finally:
        hosts.path(1, f"{HOME}/hostfile").unlink()
    assert [said.machine for said in places(done, 4)] == ["h2", "h2", "h3", "h5"]


def test_more_ranks_than_slots_show_the_arithmetic(hosts: SshHosts) -> None:
    done = run(hosts, "-np", 6, "-H", "h1:2,h2:1,h3", "true")
    assert done.status != 0
    assert done.told() == (
        "error: 6 ranks do not fit: the hosts have h1 2 + h2 1 + h3 1 = 4 slots\n"
        "hint: lower -np, or give more slots, for example -H localhost:6\n"
    )
    assert done.output == ""


def test_environment_and_folder_are_the_launchers(hosts: SshHosts) -> None:
    say = 'echo "$(hostname) $(pwd) $GREETING"'
    done = run(hosts, "-np", 2, "-H", "h1,h2", "sh", "-c", say, env={"GREETING": "good 'day'\n"}, folder="/usr/share")
    assert done.status == 0, done
    assert done.lines_of(0)[0] == "h1 /usr/share good 'day'"
    assert done.lines_of(1)[0] == "h2 /usr/share good 'day'"
