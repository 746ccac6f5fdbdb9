"""What must not work says so: on this rank for its own mistakes, on every rank where they disagree.

The rows of Horovod's error matrix, in its order. Where only one rank is wrong the others must not wait for it for ever,
and after every error the job goes on. Errors of what runs in the background come out where the result is waited for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

import horovod.mxnet as hvd
from horovod.common.exceptions import HorovodInternalError
from together import on_ranks

OPERATIONS: list[Callable[..., Any]] = [
    lambda **k: hvd.allreduce(mx.nd.ones(2), **k),
    lambda **k: hvd.allreduce_(mx.nd.ones(2), **k),
    lambda **k: hvd.grouped_allreduce([mx.nd.ones(2)], **k),
    lambda **k: hvd.grouped_allreduce_([mx.nd.ones(2)], **k),
    lambda **k: hvd.allgather(mx.nd.ones(2), **k),
    lambda **k: hvd.grouped_allgather([mx.nd.ones(2)], **k),
    lambda **k: hvd.broadcast(mx.nd.ones(2), 0, **k),
    lambda **k: hvd.broadcast_(mx.nd.ones(2), 0, **k),
    lambda **k: hvd.alltoall(mx.nd.ones(2), splits=[1, 1], **k),
    lambda **k: hvd.reducescatter(mx.nd.ones(2), **k),
    lambda **k: hvd.grouped_reducescatter([mx.nd.ones(2)], **k),
]
QUESTIONS: list[Callable[[], object]] = [
    hvd.rank,
    hvd.size,
    hvd.local_rank,
    hvd.local_size,
    hvd.cross_rank,
    hvd.cross_size,
    hvd.stop_timeline,
    hvd.mpi_threads_supported,
    lambda: hvd.start_timeline("timeline.json"),
]


def waited(result: Any) -> None:
    for array in result if isinstance(result, (list, tuple)) else [result]:
        array.wait_to_read()


def works() -> None:
    assert hvd.allreduce(mx.nd.ones(1), op=hvd.Sum).asscalar() == hvd.size()


def test_nothing_works_before_init_and_after_shutdown() -> None:
    script = """
import pytest, horovod.mxnet as hvd, mxnet as mx
import test_refusals as t
registered = hvd.ProcessSet([0])
for turn in range(2):
    assert not hvd.is_initialized()
    for operation in t.OPERATIONS:
        for more in ({}, {"process_set": registered}):
            with pytest.raises(t.HorovodInternalError, match="use hvd.init") as error:
                operation(**more)
            assert isinstance(error.value, mx.MXNetError)
    for question in t.QUESTIONS:
        with pytest.raises(ValueError):
            question()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.DistributedTrainer({}, "sgd")
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (0, 1)
    t.works()
    hvd.shutdown()
    hvd.shutdown()
"""
    folder = Path(__file__).parent
    path = os.pathsep.join([str(folder), str(folder.parent / "python")])
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, check=True, timeout=120)


@on_ranks(3)
def test_process_sets_that_are_unknown_removed_or_not_ones_own() -> None:
    unknown = hvd.ProcessSet([0, 1])
    removed = hvd.add_process_set([0, 1])
    hvd.remove_process_set(removed)
    pair = hvd.add_process_set([0, 1])
    for operation in OPERATIONS:
        for process_set in (unknown, removed):
            with pytest.raises(ValueError, match="not registered"):
                operation(process_set=process_set)
        if hvd.rank() == 2:
            with pytest.raises(ValueError, match="rank 2 is not in"):
                operation(process_set=pair)
        else:
            waited(operation(process_set=pair))
    hvd.remove_process_set(pair)
    works()


@on_ranks(2)
def test_roots_that_do_not_exist() -> None:
    for operation in (hvd.broadcast, hvd.broadcast_):
        with pytest.raises(ValueError, match="root_rank 7"):
            operation(mx.nd.ones(2), 7)
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="root_rank -1"):
            hvd.broadcast(mx.nd.ones(2), -1, name="one wrong")
    else:
        with pytest.raises(mx.MXNetError, match="rank 0"):
            waited(hvd.broadcast(mx.nd.ones(2), 0, name="one wrong"))
    works()


@on_ranks(2)
def test_splits_that_do_not_fit() -> None:
    wrong: list[tuple[Any, str]] = [
        (mx.nd.array([1, 1], dtype="int64"), "int32"),
        (mx.nd.array([[1, 1]], dtype="int32"), "one dimension"),
        ([1.5, 0.5], "whole numbers"),
        ([1, 1, 1], "3 entries"),
        ([2, 1], "2 rows"),
        ([-1, 1], "2 rows"),
    ]
    for splits, text in wrong:
        with pytest.raises(ValueError, match=text):
            hvd.alltoall(mx.nd.ones(2), splits)
        works()
    with pytest.raises(ValueError, match="evenly"):
        hvd.alltoall(mx.nd.ones(3))
    if hvd.rank() == 1:
        with pytest.raises(ValueError, match="entries"):
            hvd.alltoall(mx.nd.ones(2), [1], name="one wrong")
    else:
        with pytest.raises(mx.MXNetError, match="rank 1"):
            hvd.alltoall(mx.nd.ones(2), [1, 1], name="one wrong")
    works()


@on_ranks(2)
def test_reducescatter_of_scalars_and_by_other_reductions() -> None:
    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(HorovodInternalError):
            hvd.reducescatter(mx.nd.ones(2), op=op)
        with pytest.raises(HorovodInternalError):
            hvd.grouped_reducescatter([mx.nd.ones(2)], op=op)
    with mx.util.np_shape(True):
        scalar = mx.np.array(1.0)
        if hvd.rank() == 0:
            with pytest.raises(ValueError, match="scalar"):
                hvd.reducescatter(scalar, name="one scalar")
        else:
            with pytest.raises(mx.MXNetError, match="rank 0"):
                waited(hvd.reducescatter(mx.nd.ones(2), name="one scalar"))
    works()


@on_ranks(2)
def test_what_is_no_dense_array_of_a_known_type() -> None:
    sparse = mx.nd.ones((2, 2)).tostype("row_sparse")
    for wrong, text in ((sparse, "row_sparse"), ([1.0, 2.0], "list")):
        for operation in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(ValueError, match=text):
                operation(wrong)
        with pytest.raises(ValueError, match=text):
            hvd.broadcast(wrong, 0)
        with pytest.raises(ValueError, match=text):
            hvd.grouped_allreduce([mx.nd.ones(2), wrong])
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="row_sparse"):
            hvd.grouped_allreduce([mx.nd.ones(2), sparse], name="one sparse")
    else:
        with pytest.raises(mx.MXNetError, match="row_sparse"):
            waited(hvd.grouped_allreduce([mx.nd.ones(2), mx.nd.ones((2, 2))], name="one sparse"))
    works()


@on_ranks(2)
def test_op_and_average_together_and_reductions_that_do_not_exist() -> None:
    for operation in (hvd.allreduce, hvd.allreduce_):
        with pytest.raises(ValueError, match="op parameter supersedes average"):
            operation(mx.nd.ones(2), average=True, op=hvd.Sum)
    for operation in (hvd.grouped_allreduce, hvd.grouped_allreduce_):
        with pytest.raises(ValueError, match="op parameter supersedes average"):
            operation([mx.nd.ones(2)], average=True, op=hvd.Sum)
        with pytest.raises(ValueError, match="at least one tensor"):
            operation([])
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="17"):
            hvd.allreduce(mx.nd.ones(2), op=17, name="no reduction")
    else:
        with pytest.raises(mx.MXNetError, match="17"):
            waited(hvd.allreduce(mx.nd.ones(2), name="no reduction"))
    works()


@on_ranks(3)
def test_adasum_needs_a_power_of_two_and_all_ranks() -> None:
    with pytest.raises(NotImplementedError, match="power of 2"):
        hvd.allreduce(mx.nd.ones(2), op=hvd.Adasum)
    pair = hvd.add_process_set([0, 1])
    with pytest.raises(NotImplementedError, match="process set"):
        hvd.allreduce(mx.nd.ones(2), op=hvd.Adasum, process_set=pair)
    hvd.remove_process_set(pair)
    works()


@on_ranks(2, 3)
def test_ranks_that_disagree_all_hear_both_sides() -> None:
    odd = hvd.rank() == hvd.size() - 1
    ones = mx.nd.ones

    def either(usual: Any, other: Any) -> Any:
        return other if odd else usual

    disagreements: list[tuple[Callable[[], Any], tuple[str, str]]] = [
        (lambda: hvd.allreduce(ones(2, dtype=either("float32", "float64"))), ("float32", "float64")),
        (lambda: hvd.broadcast(ones(2, dtype=either("int32", "int64")), 0), ("int32", "int64")),
        (lambda: hvd.allgather(ones(2, dtype=either("uint8", "int8"))), ("uint8", "int8")),
        (lambda: hvd.alltoall(ones(6, dtype=either("uint8", "int8"))), ("uint8", "int8")),
        (lambda: hvd.reducescatter(ones(6, dtype=either("float32", "float64"))), ("float32", "float64")),
        (lambda: hvd.allreduce(ones(either(2, 3))), ("2", "3")),
        (lambda: hvd.allreduce_(ones(either((3, 2), (2, 3)))), ("3", "2")),
        (lambda: hvd.broadcast(ones(either(2, 3)), 0), ("2", "3")),
        (lambda: hvd.reducescatter(ones(either(6, 7))), ("6", "7")),
        (lambda: hvd.allreduce(ones(2), prescale_factor=either(0.25, 0.5)), ("0.25", "0.5")),
        (lambda: hvd.allreduce(ones(2), postscale_factor=either(0.25, 0.5)), ("0.25", "0.5")),
        (lambda: hvd.allreduce(ones(2), op=either(hvd.Min, hvd.Max)), ("(?i)min", "(?i)max")),
        (lambda: hvd.allgather(ones(either((2,), (2, 2)))), ("tensor of rank 1", "tensor of rank 2")),
        (lambda: hvd.alltoall(ones((6, either(4, 5)))), ("4", "5")),
        (lambda: hvd.broadcast(ones(2), either(0, 1)), ("0", "1")),
        (lambda: hvd.grouped_allreduce([ones(2), ones(either(2, 3))]), ("2", "3")),
        (lambda: hvd.grouped_allgather([ones(2), ones((2, either(4, 5)))]), ("4", "5")),
        (lambda: hvd.grouped_reducescatter([ones(6), ones((6, either(4, 5)))]), ("4", "5")),
    ]
    for number, (call, (one, other)) in enumerate(disagreements):
        with pytest.raises(mx.MXNetError, match=one) as error:
            waited(call())
        assert error.match(other), number
        assert isinstance(error.value, HorovodInternalError)
        works()


@on_ranks(2)
def test_a_failure_reaches_what_is_computed_from_the_result_and_nothing_else() -> None:
    good = hvd.allreduce(mx.nd.ones(2), name="good", op=hvd.Sum)
    bad = hvd.allreduce(mx.nd.ones(2 + hvd.rank()), name="bad")
    with pytest.raises(HorovodInternalError, match="bad"):
        waited(bad * 2 + 1)
    assert good.asnumpy().tolist() == [2.0, 2.0]
    in_place = mx.nd.ones(2 + hvd.rank())
    hvd.allreduce_(in_place, name="bad in place")
    with pytest.raises(HorovodInternalError, match="bad in place"):
        mx.nd.waitall()
    works()


class Failing(mx.operator.CustomOp):
    """An operation that fails when its turn comes, long after it was called."""

    def forward(self, **_: Any) -> None:
        raise RuntimeError("this was to fail")


@mx.operator.register("failing")
class FailingProperty(mx.operator.CustomOpProp):
    """Says what MXNet has to know about it."""

    def create_operator(self, *_: Any) -> Failing:
        return Failing()


@on_ranks(2)
def test_an_argument_that_could_not_be_computed_fails_everywhere() -> None:
    def argument() -> Any:
        return mx.nd.Custom(mx.nd.ones(2), op_type="failing") if hvd.rank() == 0 else mx.nd.ones(2)

    calls: list[Callable[[], Any]] = [
        lambda: hvd.allreduce(argument(), name="never computed"),
        lambda: hvd.allreduce_(argument(), name="never computed"),
        lambda: hvd.grouped_allreduce([mx.nd.ones(3), argument()], name="never computed"),
        lambda: hvd.broadcast(argument(), 0, name="never computed"),
        lambda: hvd.reducescatter(argument(), name="never computed"),
        lambda: hvd.allgather(argument(), name="never computed"),
    ]
    for call in calls:
        with pytest.raises(mx.MXNetError, match="CustomOp" if hvd.rank() == 0 else "rank 0"):
            waited(call())
        works()


@on_ranks(2)
def test_arguments_of_trainers_and_parameters() -> None:
    optimizer = mx.optimizer.create("sgd")
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(optimizer, gradient_predivide_factor=0.0)
    with pytest.raises(ValueError, match="num_groups"):
        hvd.DistributedTrainer({}, "sgd", num_groups=-1)
    with pytest.raises(ValueError, match="prefix"):
        hvd.DistributedTrainer({}, "sgd", prefix=3)
    with pytest.raises(ValueError, match="dict"):
        hvd.broadcast_parameters([mx.nd.ones(2)])
    with pytest.raises(ValueError, match="prefix"):
        hvd.broadcast_parameters({}, prefix=3)
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    with pytest.raises(ValueError, match="2 contexts"):
        trainer.allreduce_grads()
    works()
