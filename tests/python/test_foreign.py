"""Jobs that something else than our launcher starts: the real ``mpirun``, and tasks with the usual variables."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ronde
from ranks import HERE, Finished, await_that

PATIENCE = 60.0


def program(function: Callable[[], None]) -> list[str]:
    """Return the command that calls a function of this module."""
    return [sys.executable, "-c", f"from {__name__} import {function.__name__} as program; program()"]


class Tasks:
    """Ranks that a test starts itself, the way a task of Kubernetes or Ray is started."""

    def __init__(self, home: Path, size: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.size = size
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "PYTHONPATH": str(HERE),
            "PYTHONUNBUFFERED": "1",
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, rank: int, function: Callable[[], None], **variables: str) -> subprocess.Popen[str]:
        """Start one rank."""
        process = subprocess.Popen(
            program(function),
            env={**self.environment, "RANK": str(rank), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes[rank] = process
        return process

    def start_all(self, function: Callable[[], None], **variables: str) -> None:
        """Start all ranks, the last one first."""
        for rank in reversed(range(self.size)):
            self.start(rank, function, **variables)

    def finish(self, rank: int) -> Finished:
        """Wait for the end of a rank."""
        process = self.processes[rank]
        output, _ = process.communicate(timeout=PATIENCE)
        return Finished(process.returncode, output)

    def all_pass(self) -> list[str]:
        """Wait for the end of all ranks, none of which may fail; return what each printed."""
        done = [self.finish(rank) for rank in range(self.size)]
        assert all(one.status == 0 for one in done), done
        return [one.output for one in done]

    def kill_all(self) -> None:
        """End what is still there."""
        for process in self.processes.values():
            process.kill()
            process.communicate()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home folder of the test's own."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def three(home: Path) -> Iterator[Tasks]:
    """Return a job of three tasks, of which nothing is left after the test."""
    tasks = Tasks(home, 3)
    yield tasks
    tasks.kill_all()


def files_of_jobs(home: Path) -> list[str]:
    """Return the names of the files by which ranks find each other."""
    return sorted(path.name for path in (home / ".ronde" / "jobs").iterdir())


def read_until(process: subprocess.Popen[str], wanted: str) -> None:
    """Read a rank's output up to a line."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.strip() == wanted:
            return
    raise AssertionError("".join(seen))


# What the ranks do.


def add_up() -> None:
    """Reduce once, say where this rank is, and end without a word to the others."""
    ronde.init()
    total = ronde.allreduce(np.full(1000, ronde.rank() + 1.0), op=ronde.Sum)
    assert np.all(total == ronde.size() * (ronde.size() + 1) / 2), total
    place = (ronde.rank(), ronde.size(), ronde.local_rank(), ronde.local_size(), ronde.cross_rank())
    # In one piece: mpirun passes on what it reads, line or not.
    os.write(1, f"place {' '.join(map(str, place))}\n".encode())


def come_and_go() -> None:
    """Leave the job and join it again."""
    for _ in range(3):
        add_up()
        ronde.shutdown()


def stay_after_rank_0() -> None:
    """End rank 0 at once, the others when they are told to."""
    add_up()
    if ronde.rank() > 0:
        sys.stdin.readline()
    print("done")


def raise_on_rank_0() -> None:
    """Fail on rank 0 while the others wait for it."""
    ronde.init()
    ronde.allreduce(np.ones(1))
    if ronde.rank() == 0:
        raise FileNotFoundError("no such data")
    ronde.allreduce(np.ones(1))


def wait_for_rank_1() -> None:
    """Wait for a rank that does not come."""
    ronde.init()
    ronde.allreduce(np.ones(1))
    print("together")
    if ronde.rank() == 1:
        signal.pause()
    ronde.allreduce(np.ones(1))


def fork_on_rank_0() -> None:
    """Look at what a forked child of rank 0 has of the job's connections."""
    before = open_sockets()
    ronde.init()
    ronde.barrier()
    if ronde.rank() == 0:
        assert len(open_sockets()) > len(before)
        child = os.fork()
        if child == 0:
            os._exit(0 if open_sockets() == before else 7)
        _, status = os.waitpid(child, 0)
        print("child", os.waitstatus_to_exitcode(status))
    ronde.barrier()


def open_sockets() -> set[str]:
    """Return the sockets of this process."""
    links = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.add(str(entry.readlink()))
        except FileNotFoundError:
            # The one by which the folder is read.
            continue
    return {link for link in links if link.startswith("socket:")}


# What should come of it.


def test_mpirun_starts_a_job_and_one_program_after_the_other(home: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.fail("this test needs mpirun: apt-get install openmpi-bin")
    command = " ".join(f"'{word}'" for word in program(add_up))
    done = subprocess.run(
        ["mpirun", "-np", "3", "--oversubscribe", "--allow-run-as-root", "bash", "-c", f"{command} && {command}"],
        env={**os.environ, "HOME": str(home), "PYTHONPATH": str(HERE)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    places = sorted(line for line in done.stdout.splitlines() if line.startswith("place"))
    assert places == sorted(2 * [f"place {rank} 3 {rank} 3 0" for rank in range(3)])
    assert files_of_jobs(home) == []


def test_tasks_meet_at_the_master_and_leave_nothing(home: Path, three: Tasks) -> None:
    three.start_all(add_up)
    assert three.all_pass() == [f"place {rank} 3 0 1 {rank}\n" for rank in range(3)]
    assert files_of_jobs(home) == []


def test_tasks_leave_and_join_again(three: Tasks) -> None:
    three.start_all(come_and_go)
    assert [output.count("place") for output in three.all_pass()] == [3, 3, 3]


def test_rank_0_stays_until_the_others_have_left(three: Tasks) -> None:
    three.start_all(stay_after_rank_0)
    first = three.processes[0]
    read_until(first, "done")
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(timeout=0.5)
    for rank in (1, 2):
        assert "done" in three.finish(rank).output
    assert three.finish(0).status == 0


def test_what_rank_0_raised_reaches_the_others_and_nobody_waits(three: Tasks) -> None:
    # A rank that waited for the others would do so for longer than PATIENCE.
    three.start_all(raise_on_rank_0)
    done = [three.finish(rank) for rank in range(3)]
    assert all(one.status == 1 for one in done), done
    for other in done[1:]:
        assert "FileNotFoundError: no such data" in other.output, other.output


def test_a_killed_rank_is_named_by_all_others(three: Tasks) -> None:
    three.start_all(wait_for_rank_1)
    read_until(three.processes[1], "together")
    three.processes[1].kill()
    for rank in (0, 2):
        done = three.finish(rank)
        assert done.status == 1, done.output
        assert "rank 1 on" in done.output, done.output


def test_what_a_killed_start_left_does_not_disturb_the_next(home: Path, three: Tasks) -> None:
    killed = three.start(0, add_up)
    jobs = home / ".ronde" / "jobs"
    await_that("the file", lambda: any(path.suffix != ".new" for path in jobs.glob("*")))
    assert killed.poll() is None
    killed.kill()
    killed.communicate()
    (stale,) = files_of_jobs(home)
    assert (jobs / stale).stat().st_mode & 0o777 == 0o600

    # The others come first, so that what they find is what was left.
    three.start_all(add_up)
    assert three.all_pass() == [f"place {rank} 3 0 1 {rank}\n" for rank in range(3)]
    assert files_of_jobs(home) == []


def test_a_rank_without_rank_0_says_what_it_waits_for(home: Path, three: Tasks) -> None:
    three.start(1, add_up, RONDE_START_TIMEOUT="0.5")
    done = three.finish(1)
    assert done.status == 1
    assert "started with RANK and WORLD_SIZE: timed out" in done.output, done.output
    assert f"it will make {home}/.ronde/jobs/tasks-" in done.output, done.output


def test_rank_0_without_the_others_names_them_and_tells_those_who_came(home: Path, three: Tasks) -> None:
    three.start(0, add_up, RONDE_START_TIMEOUT="1")
    three.start(1, add_up)
    for rank in (0, 1):
        done = three.finish(rank)
        assert done.status == 1
        assert "waiting for rank 2 to call init()" in done.output, done.output
    assert files_of_jobs(home) == []


def test_a_home_that_cannot_be_used_is_no_obstacle_on_one_host(three: Tasks) -> None:
    three.start_all(add_up, HOME="/proc")
    three.all_pass()


def test_a_forked_child_has_none_of_the_rendezvous_connections(three: Tasks) -> None:
    three.start_all(fork_on_rank_0)
    assert three.all_pass()[0] == "child 0\n"


def test_variables_that_make_no_job_are_explained_in_init() -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run(
        program(add_up), env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 1
    assert "started by Open MPI's mpirun: OMPI_COMM_WORLD_RANK" in done.stderr, done.stderr
