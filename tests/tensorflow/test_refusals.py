"""What must not work says so: on this rank for its own mistakes, on every rank where they disagree.

The rows of Horovod's error matrix with the classes of errors that TensorFlow has for them. Where only one rank is wrong
the others must not wait for it for ever, and after every error the job goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
import ronde
from ranks import on_ranks as program_on_ranks
from together import on_ranks

Invalid = tf.errors.InvalidArgumentError
Failed = tf.errors.FailedPreconditionError

OPERATIONS: list[Callable[..., object]] = [
    lambda **k: hvd.allreduce(tf.ones([2]), **k),
    lambda **k: hvd.grouped_allreduce([tf.ones([2])], **k),
    lambda **k: hvd.allgather(tf.ones([2]), **k),
    lambda **k: hvd.grouped_allgather([tf.ones([2])], **k),
    lambda **k: hvd.broadcast(tf.ones([2]), 0, **k),
    lambda **k: hvd.alltoall(tf.ones([2]), splits=[1, 1], **k),
    lambda **k: hvd.reducescatter(tf.ones([2]), **k),
    lambda **k: hvd.grouped_reducescatter([tf.ones([2])], **k),
    lambda **k: hvd.broadcast_([tf.Variable([1.0])], 0, **k),
    lambda **k: hvd.broadcast_variables([tf.Variable([1.0])], 0, **k),
]


def works() -> None:
    assert float(hvd.allreduce(tf.ones([]), op=hvd.Sum)) == hvd.size()


def in_both_modes(operation: Callable[..., object], **options: Any) -> list[Callable[[], object]]:
    """Return an operation as it is called eagerly, and as a function whose graph has it."""
    return [lambda: operation(**options), lambda: tf.function(lambda: operation(**options), autograph=False)()]


def test_nothing_works_before_init_and_after_shutdown() -> None:
    script = """
import pytest, horovod.tensorflow as hvd, tensorflow as tf
import test_refusals as t
registered = hvd.ProcessSet([0])
for turn in range(2):
    assert not hvd.is_initialized()
    for operation in t.OPERATIONS:
        for options in ({}, {"process_set": registered}):
            with pytest.raises(tf.errors.FailedPreconditionError):
                operation(**options)
    with pytest.raises(tf.errors.FailedPreconditionError):
        hvd.join()
    assert int(hvd.process_set_included_op()) == -1
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size):
        with pytest.raises(ValueError, match="has not been initialized; use hvd.init"):
            question()
    for function in (hvd.broadcast_object, hvd.allgather_object):
        with pytest.raises(RuntimeError, match="has not been initialized"):
            function(1)
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (0, 1)
    t.works()
    hvd.shutdown()
    hvd.shutdown()
"""
    here = Path(__file__).parent
    folders = [str(here), str(here.parent / "python")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=300)


@on_ranks(2)
def test_a_name_in_flight_cannot_be_used_again() -> None:
    def reduce() -> Any:
        return hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="twice").numpy().tolist()

    if hvd.rank() == 0:
        with ThreadPoolExecutor(2) as threads:
            # Whichever comes second is refused while the other still waits for rank 1.
            calls = [threads.submit(reduce) for _ in range(2)]
            (refused,), (waiting,) = wait(calls, return_when=FIRST_COMPLETED)
            with pytest.raises(Invalid, match="twice"):
                refused.result()
            ronde.barrier()
            assert waiting.result() == [2.0, 2.0]
    else:
        ronde.barrier()
        assert reduce() == [2.0, 2.0]
    works()


@on_ranks(3)
def test_process_sets_that_are_unknown_removed_or_not_ones_own() -> None:
    unknown = hvd.ProcessSet([0, 1])
    removed = hvd.add_process_set([0, 1])
    hvd.remove_process_set(removed)
    pair = hvd.add_process_set([0, 1])
    for operation in OPERATIONS:
        for process_set in (unknown, removed):
            for call in in_both_modes(operation, process_set=process_set):
                with pytest.raises(Invalid, match="not registered"):
                    call()
    foreign = [operation for operation in OPERATIONS[:8] if not pair.included()]
    for operation in foreign:
        for call in in_both_modes(operation, process_set=pair):
            with pytest.raises(Invalid):
                call()
    if pair.included():
        with pytest.raises(Invalid):
            hvd.broadcast(tf.ones([2]), root_rank=2, process_set=pair)
    ronde.barrier()
    hvd.remove_process_set(pair)
    with pytest.raises(Invalid):
        hvd.broadcast(tf.ones([2]), root_rank=3)
    works()


@on_ranks(2)
def test_wrong_splits_raise_on_every_rank() -> None:
    wrong: list[tuple[Any, int]] = [
        (tf.constant([[1, 1]]), 2),
        (tf.constant([1, 1], tf.int64), 2),
        (tf.constant([1.0, 1.0]), 2),
        ([1, 1, 1], 3),
        ([2], 2),
        ([2, 1], 2),
        ([-1, 2], 2),
        (None, 3),
    ]
    for splits, rows in wrong:
        # Only the last rank is wrong; the other hears what is the matter, and with whom.
        if hvd.rank() == 1:
            with pytest.raises(Invalid):
                hvd.alltoall(tf.ones([rows]), splits=splits)
        else:
            with pytest.raises(Failed, match="rank 1"):
                hvd.alltoall(tf.ones([2]), splits=[1, 1])
        works()


@on_ranks(2)
def test_reducescatter_knows_two_reductions_and_needs_rows() -> None:
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        for call in in_both_modes(hvd.reducescatter, tensor=tf.ones([2]), op=op):
            with pytest.raises(tf.errors.AbortedError):
                call()
    with pytest.raises(Invalid):
        hvd.reducescatter(tf.constant(1.0))
    works()


@on_ranks(2)
def test_scalars_cannot_be_gathered() -> None:
    for operation in (hvd.allgather, hvd.alltoall):
        with pytest.raises((Invalid, Failed)):
            operation(tf.constant(1.0))
    works()


@on_ranks(2)
def test_types_that_cannot_travel() -> None:
    for dtype in (tf.complex64, tf.string):
        value = tf.zeros([2], dtype)
        for operation in (hvd.allreduce, hvd.allgather, lambda item: hvd.broadcast(item, 0)):
            with pytest.raises((Invalid, tf.errors.NotFoundError, TypeError)):
                operation(value)
    works()


@on_ranks(3)
def test_adasum_needs_all_ranks_and_a_power_of_two() -> None:
    with pytest.raises(NotImplementedError, match="power of 2"):
        hvd.allreduce(tf.ones([2]), op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="process set"):
        hvd.grouped_allreduce([tf.ones([2])], op=hvd.Adasum, process_set=hvd.ProcessSet([0, 1]))
    assert [hvd.check_num_rank_power_of_2(count) for count in (1, 2, 3, 4)] == [True, True, False, True]


@on_ranks(2)
def test_slices_and_old_arguments() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    for options in ({"op": hvd.Adasum}, {"op": hvd.Max}, {"prescale_factor": 2.0}, {"postscale_factor": 2.0}):
        for call in (hvd.allreduce, lambda item, **k: hvd.grouped_allreduce([item], **k)):
            with pytest.raises(NotImplementedError):
                call(slices, **options)
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(tf.ones([1]), average=True, op=hvd.Sum)
    works()


# What the ranks say to each other, and what the error says about it: a pair of operations that do not fit.
DISAGREEMENTS: list[tuple[str, Callable[[int], object]]] = [
    ("data type", lambda rank: hvd.allreduce(tf.ones([2], [tf.float32, tf.float64][rank]), name="types")),
    ("shape", lambda rank: hvd.allreduce(tf.ones([2 + rank]), name="shapes")),
    ("shape", lambda rank: hvd.broadcast(tf.ones([2 + rank]), 0, name="shapes")),
    ("factor", lambda rank: hvd.allreduce(tf.ones([2]), prescale_factor=1.0 + rank, name="factors")),
    ("reduc", lambda rank: hvd.allreduce(tf.ones([2]), op=[hvd.Sum, hvd.Max][rank], name="reductions")),
    ("dimension", lambda rank: hvd.allgather(tf.ones([2, 2 + rank]), name="extents")),
    ("rank", lambda rank: hvd.allgather(tf.ones([2] * (1 + rank)), name="dimensions")),
    ("root", lambda rank: hvd.broadcast(tf.ones([2]), rank, name="roots")),
    ("dimension", lambda rank: hvd.alltoall(tf.ones([2, 2 + rank]), name="extents")),
    ("shape", lambda rank: hvd.reducescatter(tf.ones([2 + rank]), name="shapes")),
]


@on_ranks(2)
def test_ranks_that_disagree_hear_of_it() -> None:
    for words, operation in DISAGREEMENTS:
        for call in in_both_modes(operation, rank=hvd.rank()):
            with pytest.raises(Failed, match=f"(?is){words}"):
                call()
            works()


@on_ranks(2)
def test_what_needs_every_rank_fails_after_a_join() -> None:
    if hvd.rank() == 0:
        for operation in (hvd.allgather, hvd.alltoall, hvd.reducescatter, lambda item: hvd.broadcast(item, 0)):
            with pytest.raises(Failed, match=r"(?i)join"):
                operation(tf.ones([2]))
    assert int(hvd.join()) in (0, 1)
    works()


def loses_a_rank() -> None:
    """Run by the ranks of a job of its own: one of them leaves while the other still needs it."""
    hvd.init()
    works()
    if hvd.rank() == 1:
        hvd.shutdown()
        return
    for call in in_both_modes(hvd.allreduce, tensor=tf.ones([2])):
        with pytest.raises(tf.errors.UnknownError, match="HorovodAllreduce") as raised:
            call()
        assert "rank 1" in str(raised.value)


def test_a_lost_rank_is_an_unknown_error_that_names_the_operation() -> None:
    here = Path(__file__).parent
    folders = os.pathsep.join([str(here), str(here.parent / "python")])
    done = program_on_ranks(2, loses_a_rank, timeout=300, PYTHONPATH=folders)
    assert done.status == 0, done.output
