"""Jobs that the real ``srun`` starts, on one host and on two. Needs root and Slurm (``make test-slurm``)."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cluster import Slurm
from hosts import Hosts

SCRIPT = """
import numpy as np, ronde
ronde.init()
total = ronde.allreduce(np.full(100_000, ronde.rank() + 1.0), op=ronde.Sum)
assert np.all(total == ronde.size() * (ronde.size() + 1) / 2), total
world, local = f"{ronde.rank()}/{ronde.size()}", f"{ronde.local_rank()}/{ronde.local_size()}"
print(f"{world} {local} {ronde.cross_rank()}/{ronde.cross_size()}")
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Return a cluster of two hosts, which share no home but a folder that they cannot write to."""
    folder = tmp_path_factory.mktemp("slurm")
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    with Hosts(2, expose=[sys.prefix, folder]) as hosts, Slurm(hosts, folder) as cluster:
        yield cluster


def srun(slurm: Slurm, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a step."""
    command = ["srun", "--chdir=/", *options, sys.executable, "-c", SCRIPT]
    return slurm.command(command, {"RONDE_START_TIMEOUT": "30", "PYTHONUNBUFFERED": "1", **variables})


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the ranks printed, by rank."""
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def test_a_step_on_one_host_meets_through_the_home(slurm: Slurm) -> None:
    done = srun(slurm, "--nodes=1", "--ntasks=3")
    assert lines(done) == ["0/3 0/3 0/1", "1/3 1/3 0/1", "2/3 2/3 0/1"]
    assert done.stderr == ""


def test_a_step_on_unequal_hosts_meets_at_the_first(slurm: Slurm) -> None:
    done = srun(slurm, "--nodes=2", "--ntasks=3", RONDE_SECRET_FILE=str(slurm.folder / "secret"))
    assert lines(done) == ["0/3 0/2 0/2", "1/3 1/2 0/1", "2/3 0/1 1/2"]


def test_a_step_whose_ranks_go_round_the_hosts_knows_where_each_is(slurm: Slurm) -> None:
    options = ["--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--distribution=cyclic"]
    done = srun(slurm, *options, RONDE_SECRET_FILE=str(slurm.folder / "secret"))
    assert lines(done) == ["0/4 0/2 0/2", "1/4 0/2 1/2", "2/4 1/2 0/2", "3/4 1/2 1/2"]


def test_a_home_that_is_not_shared_is_explained(slurm: Slurm) -> None:
    done = srun(slurm, "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", RONDE_START_TIMEOUT="2")
    assert done.returncode != 0
    assert "started by srun: timed out after 2 s waiting for rank 0 to serve the job" in done.stderr, done.stderr
    assert "RONDE_SECRET_FILE" in done.stderr


def test_a_step_of_one_task_is_a_job_of_one(slurm: Slurm) -> None:
    assert lines(srun(slurm, "--ntasks=1")) == ["0/1 0/1 0/1"]
