"""Joining, leaving and losing a job."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import horovod.common.exceptions
import ronde
from ranks import NO_KILL, all_ranks_pass, on_ranks

COLLECTIVES: list[Callable[[], object]] = [
    lambda: ronde.allreduce(np.ones(2)),
    lambda: ronde.allreduce_(np.ones(2)),
    lambda: ronde.allgather(np.ones(2)),
    lambda: ronde.broadcast(np.ones(2), 0),
    lambda: ronde.broadcast_(np.ones(2), 0),
    lambda: ronde.reducescatter(np.ones(2)),
    lambda: ronde.alltoall(np.ones(2)),
    ronde.barrier,
]
PLACE = [ronde.rank, ronde.size, ronde.local_rank, ronde.local_size, ronde.cross_rank, ronde.cross_size]


def knows_its_place() -> None:
    expected = int(os.environ["EXPECTED_SIZE"])
    ronde.init()
    ronde.init()
    assert ronde.is_initialized()
    assert ronde.size() == ronde.local_size() == expected
    assert ronde.rank() == ronde.local_rank() == int(os.environ["HOROVOD_RANK"])
    assert (ronde.cross_rank(), ronde.cross_size()) == (0, 1)
    assert ronde.allgather(np.array([ronde.rank()])).tolist() == list(range(expected))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_know_their_place(ranks: int) -> None:
    all_ranks_pass(ranks, knows_its_place, EXPECTED_SIZE=str(ranks))


def test_a_plain_script_is_a_job_of_size_1_and_may_join_again() -> None:
    script = """
        import ronde
        for _ in range(2):
            assert not ronde.is_initialized()
            ronde.init()
            assert (ronde.rank(), ronde.size(), ronde.local_size(), ronde.cross_size()) == (0, 1, 1, 1)
            ronde.barrier()
            ronde.shutdown()
            ronde.shutdown()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


def joins_and_leaves_many_times() -> None:
    for _ in range(50):
        ronde.init()
        ronde.shutdown()


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_may_leave_as_soon_as_it_has_joined(ranks: int) -> None:
    all_ranks_pass(ranks, joins_and_leaves_many_times)


def test_nothing_works_before_init() -> None:
    ronde.shutdown()
    for question in PLACE:
        with pytest.raises(ValueError, match=r"^Horovod has not been initialized; use hvd.init\(\)\.$"):
            question()
    for collective in COLLECTIVES:
        with pytest.raises(ronde.HorovodInternalError, match="has not been initialized"):
            collective()


def test_horovods_name_catches_our_exception() -> None:
    assert horovod.common.exceptions.HorovodInternalError is ronde.HorovodInternalError
    assert issubclass(ronde.HorovodInternalError, RuntimeError)


def test_an_environment_that_is_half_there_is_an_error_that_names_the_missing_half() -> None:
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "RONDE_"))}
    call = [sys.executable, "-c", "import ronde; ronde.init()"]
    done = subprocess.run(
        call, env={**alone, "HOROVOD_RANK": "0"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "InitializationError: HOROVOD_RANK is set but" in done.stderr


def forks() -> None:
    ronde.init()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            refused = 0
            for call in [*COLLECTIVES, *PLACE, ronde.init]:
                try:
                    call()
                except ronde.HorovodInternalError as error:
                    refused += f"forked from process {os.getppid()}" in str(error)
            ronde.shutdown()
            status = 0 if refused == len(COLLECTIVES) + len(PLACE) + 1 and not ronde.is_initialized() else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert ronde.allreduce(np.ones(1), op=ronde.Sum).item() == ronde.size()


def test_a_forked_child_is_refused_and_its_parent_goes_on() -> None:
    all_ranks_pass(2, forks)


def disagrees() -> None:
    ronde.init()
    last = ronde.rank() == ronde.size() - 1
    wrong: list[tuple[Callable[[], object], str, str]] = [
        (lambda: ronde.allreduce(np.ones(3 if last else 2)), r"\(2\) float64", r"\(3\) float64"),
        (lambda: ronde.allreduce(np.ones(2, np.float32 if last else np.float64)), r"\(2\) float64", r"\(2\) float32"),
        (lambda: ronde.allreduce(np.ones(2), op=ronde.Sum if last else ronde.Min), "min", "sum"),
        (lambda: ronde.broadcast(np.ones(2), root_rank=1 if last else 0), "root rank 0", "root rank 1"),
        (lambda: ronde.allgather(np.ones((2, 3 if last else 2), np.uint8)), r"\(\*, 2\) uint8", r"\(\*, 3\) uint8"),
        (lambda: ronde.barrier() if last else ronde.allgather(np.ones(2)), r"allgather of \(\*\) float64", "barrier"),
    ]
    for call, first, other in wrong:
        with pytest.raises(ronde.HorovodInternalError, match=rf"ranks 0 and 1: +.*{first}\n +rank +2: .*{other}"):
            call()
    assert ronde.allreduce(np.ones(1), op=ronde.Sum).item() == ronde.size()


def test_ranks_that_disagree_all_hear_both_sides_and_the_job_goes_on() -> None:
    all_ranks_pass(3, disagrees)


def takes_turns() -> None:
    ronde.init()

    # The threads of a rank are served in any order, so those that run at once all ask for the same.
    def reduce() -> None:
        for _ in range(50):
            assert ronde.allreduce(np.ones(100), op=ronde.Sum)[-1] == ronde.size()

    def gather() -> None:
        for _ in range(50):
            assert ronde.allgather(np.ones((2, 3))).shape == (2 * ronde.size(), 3)

    with ThreadPoolExecutor(4) as threads:
        for work in (reduce, gather):
            for future in [threads.submit(work) for _ in range(4)]:
                future.result()


def test_four_threads_take_turns() -> None:
    all_ranks_pass(2, takes_turns)


def is_interrupted() -> None:
    ronde.init()
    done = Path(os.environ["PIPE"])
    if ronde.rank() == 1:
        # Stays away from the barrier until the other has ended its wait.
        assert done.read_text() == "interrupted"
        return
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        ronde.barrier()
    except KeyboardInterrupt:
        done.write_text("interrupted")
    else:
        raise AssertionError("the barrier was passed by one rank of two")


def test_ctrl_c_ends_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    all_ranks_pass(2, is_interrupted, PIPE=str(tmp_path / "pipe"))


def leaves_in_a_signal_handler() -> None:
    ronde.init()
    done = Path(os.environ["PIPE"])
    if ronde.rank() == 1:
        assert done.read_text() == "left"
        return
    signal.signal(signal.SIGALRM, lambda *_: ronde.shutdown())
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(ronde.HorovodInternalError, match="shutdown"):
        ronde.allreduce(np.ones(10))
    assert not ronde.is_initialized()
    done.write_text("left")


def test_a_signal_handler_may_leave_the_job_in_the_middle_of_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    all_ranks_pass(2, leaves_in_a_signal_handler, PIPE=str(tmp_path / "pipe"))


def runs_out_of_patience() -> None:
    ronde.init()
    done = Path(os.environ["PIPE"])
    if ronde.rank() == 1:
        assert done.read_text() == "gave up"
        assert (ronde.allreduce(np.ones(100_000), op=ronde.Sum) == 2).all()
        ronde.barrier()
        return

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    gradient = np.ones(100_000)
    alive = weakref.ref(gradient)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        ronde.allreduce(gradient, op=ronde.Sum)
    except TimeoutError:
        pass
    else:
        raise AssertionError("the reduction was over before the other rank came")
    del gradient
    # The other rank has not come yet; when it does, the operation runs on this memory.
    assert alive() is not None
    done.write_text("gave up")
    ronde.barrier()


def test_arrays_outlive_an_operation_whose_wait_a_signal_handler_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    all_ranks_pass(2, runs_out_of_patience, PIPE=str(tmp_path / "pipe"))


def loses_a_rank() -> None:
    # The launcher stops the survivors as well; they want to see the error first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder = Path(os.environ["FOLDER"])
    ronde.init()
    for turn in range(1_000_000):
        if ronde.rank() == 1 and turn == 500:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            ronde.allreduce(np.ones(10_000, np.float32))
        except ronde.HorovodInternalError as error:
            (folder / f"{ronde.rank()}").write_text(str(error))
            break


def test_survivors_of_a_killed_rank_hear_who_it_was(tmp_path: Path) -> None:
    done = on_ranks(3, loses_a_rank, options=NO_KILL, FOLDER=str(tmp_path))
    assert done.status != 0, done.output
    for survivor in ("0", "2"):
        assert "rank 1" in (tmp_path / survivor).read_text(), done.output


def reduces_and_gathers() -> None:
    # Every rank keeps its memory to itself, as if it ran on a host of its own.
    os.environ["RONDE_MEMORY_DOMAIN"] = os.environ["HOROVOD_RANK"]
    ronde.init()
    rank, size = ronde.rank(), ronde.size()
    for elements in (1, 1000, 1_000_000):
        total = ronde.allreduce(np.full(elements, rank, np.int64), op=ronde.Sum)
        assert (total == size * (size - 1) // 2).all()
    assert ronde.allgather(np.full(rank, rank)).tolist() == [other for other in range(size) for _ in range(other)]
    assert ronde.broadcast(np.array([rank]), size - 1).tolist() == [size - 1]
    ronde.barrier()


def test_ranks_that_share_no_memory_use_the_network() -> None:
    all_ranks_pass(3, reduces_and_gathers)


def keeps_no_connection_in_a_forked_child() -> None:
    ronde.init()
    ronde.barrier()
    before = sockets()
    assert before
    child = os.fork()
    if child == 0:
        os._exit(len(before & sockets()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ronde.barrier()


def sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        # The descriptor of the folder itself is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("socket:")}


def test_a_forked_child_keeps_no_connection_that_would_hide_its_parents_death() -> None:
    all_ranks_pass(2, keeps_no_connection_in_a_forked_child)


def sleeps_while_it_waits() -> None:
    ronde.init()
    ronde.barrier()
    if ronde.rank() == 0:
        time.sleep(1.0)  # sleep: the others have to wait, which takes time by nature
        ronde.barrier()
    else:
        before = time.process_time()
        ronde.barrier()
        assert time.process_time() - before < 0.5, "a waiting rank keeps a core busy"


def test_a_rank_that_waits_does_not_keep_a_core_busy() -> None:
    all_ranks_pass(2, sleeps_while_it_waits)
