"""Jobs of other launchers on several hosts: who serves where, and by which secret. Needs root."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import Hosts

SCRIPT = """
import numpy as np, ronde
ronde.init()
total = ronde.allreduce(np.full(100_000, ronde.rank() + 1.0), op=ronde.Sum)
assert np.all(total == 6), total
print(ronde.rank(), ronde.cross_rank(), ronde.cross_size())
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hosts, Path]]:
    """Return three hosts, and a file with a secret that all of them see."""
    secret = tmp_path_factory.mktemp("shared") / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    environment = Path(sys.prefix)
    with Hosts(3, expose=[environment, secret.parent]) as hosts:
        yield hosts, secret


def start(hosts: Hosts, rank: int, **variables: str) -> subprocess.Popen[str]:
    """Start a rank on a host of its own, as Open MPI would."""
    said = {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "PMIX_NAMESPACE": "test",
        "RONDE_START_TIMEOUT": "30",
        **variables,
    }
    command = [sys.executable, "-c", SCRIPT]
    return hosts.popen(
        rank + 1, command, said, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def finish(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Wait for the end of the ranks: status, output and errors of each."""
    ended = [rank.communicate(timeout=120) for rank in ranks]
    return [(rank.returncode, output, errors) for rank, (output, errors) in zip(ranks, ended)]


EXPECTED = [f"{rank} {rank} 3\n" for rank in range(3)]


@pytest.mark.parametrize("master", ["h1", "h1.v6"])
def test_hosts_with_a_secret_in_common_meet_at_the_master(three: tuple[Hosts, Path], master: str) -> None:
    hosts, secret = three
    ranks = [start(hosts, rank, MASTER_ADDR=master, RONDE_SECRET_FILE=str(secret)) for rank in (2, 1, 0)]
    done = finish(ranks)[::-1]
    assert [output for _, output, _ in done] == EXPECTED, done
    assert [errors for _, _, errors in done] == ["", "", ""], done


def test_a_master_whose_own_name_is_loopback_is_reached_by_the_others(three: tuple[Hosts, Path]) -> None:
    hosts, secret = three
    common = {"RONDE_SECRET_FILE": str(secret), "RONDE_RENDEZVOUS_PORT": "7000"}
    # As on machines whose /etc/hosts gives their own name the address 127.0.1.1.
    table = hosts.path(1, "/etc/hosts")
    before = table.read_text()
    table.write_text(before.replace(f"{hosts.address(1)} h1\n", "127.0.1.1 h1\n"))
    hosts.run(1, ["ip", "route", "replace", "default", "dev", "eth0"])
    try:
        done = finish([start(hosts, rank, MASTER_ADDR="h1", **common) for rank in range(3)])
    finally:
        table.write_text(before)
    assert [output for _, output, _ in done] == EXPECTED, done


def test_without_a_secret_hosts_meet_only_if_that_is_wanted_and_it_is_said_once(three: tuple[Hosts, Path]) -> None:
    hosts, _ = three
    done = finish([start(hosts, rank, MASTER_ADDR="h1", RONDE_INSECURE="1") for rank in range(3)])
    assert [output for _, output, _ in done] == EXPECTED, done
    assert "RONDE_INSECURE is set: whoever can reach port 29501 of h1 can take part" in done[0][2]
    assert [errors for _, _, errors in done[1:]] == ["", ""]

    # These hosts have a home each.
    second = start(hosts, 1, MASTER_ADDR="h1", RONDE_START_TIMEOUT="1")
    ((status, _, errors),) = finish([second])
    assert status == 1
    assert "without a shared home name a file that all hosts have with RONDE_SECRET_FILE" in errors, errors


def test_open_mpi_on_several_hosts_is_told_how_to_name_the_first(three: tuple[Hosts, Path]) -> None:
    ((status, _, errors),) = finish([start(three[0], 1)])
    assert status == 1
    assert "mpirun -x MASTER_ADDR=HOST" in errors, errors
