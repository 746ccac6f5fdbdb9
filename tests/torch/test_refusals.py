"""What must not work says so: on this rank for its own mistakes, on every rank where they disagree.

The rows of Horovod's error matrix, in its order. Where only one rank is wrong the others must not wait for it for ever,
and after every error the job goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import horovod.torch as hvd
from horovod.torch import HorovodInternalError
from prepare import DEVICE
from ranks import all_ranks_pass
from together import on_ranks

OPERATIONS: list[Callable[..., object]] = [
    lambda **k: hvd.allreduce(torch.ones(2), **k),
    lambda **k: hvd.allreduce_(torch.ones(2), **k),
    lambda **k: hvd.allreduce_async(torch.ones(2), **k),
    lambda **k: hvd.allreduce_async_(torch.ones(2), **k),
    lambda **k: hvd.grouped_allreduce([torch.ones(2)], **k),
    lambda **k: hvd.grouped_allreduce_async_([torch.ones(2)], **k),
    lambda **k: hvd.allgather(torch.ones(2), **k),
    lambda **k: hvd.grouped_allgather([torch.ones(2)], **k),
    lambda **k: hvd.broadcast(torch.ones(2), 0, **k),
    lambda **k: hvd.broadcast_(torch.ones(2), 0, **k),
    lambda **k: hvd.alltoall(torch.ones(2), splits=[1, 1], **k),
    lambda **k: hvd.reducescatter(torch.ones(2), **k),
    lambda **k: hvd.grouped_reducescatter([torch.ones(2)], **k),
    lambda **k: hvd.barrier(**k),
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


def works() -> None:
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_nothing_works_before_init_and_after_shutdown() -> None:
    script = """
import pytest, horovod.torch as hvd, torch
import test_refusals as t
registered = hvd.ProcessSet([0])
for turn in range(2):
    assert not hvd.is_initialized()
    for operation in t.OPERATIONS:
        with pytest.raises(hvd.HorovodInternalError):
            operation()
        with pytest.raises(hvd.HorovodInternalError):
            operation(process_set=registered)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.join()
    for question in t.QUESTIONS:
        with pytest.raises(ValueError):
            question()
    with pytest.raises(ValueError, match="has not been initialized; use hvd.init"):
        hvd.rank()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1))
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (0, 1)
    t.works()
    hvd.shutdown()
    hvd.shutdown()
"""
    folders = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "..", "python")]  # noqa: PTH118, PTH120
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=120)


@on_ranks(2)
def test_a_name_in_flight_cannot_be_used_again() -> None:
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(torch.ones(2), name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]
    works()


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
        if not pair.included():
            with pytest.raises(ValueError):  # noqa: PT011
                operation(process_set=pair)
    if not pair.included():
        with pytest.raises(ValueError, match="rank 2 is not in"):
            pair.rank()
    else:
        with pytest.raises(ValueError):  # noqa: PT011
            hvd.broadcast(torch.ones(2), root_rank=2, process_set=pair)
    hvd.remove_process_set(pair)
    with pytest.raises(ValueError):  # noqa: PT011
        hvd.broadcast(torch.ones(2), root_rank=3)
    works()


@on_ranks(2)
def test_registering_a_process_set_twice_is_refused() -> None:
    pair = hvd.add_process_set([1])
    with pytest.raises(ValueError, match="registered already"):
        hvd.add_process_set(pair)
    with pytest.raises(ValueError):  # noqa: PT011
        hvd.add_process_set([1])
    hvd.remove_process_set(pair)
    with pytest.raises(ValueError):  # noqa: PT011
        hvd.add_process_set([0, 1])
    for wrong in ("01", [0.5], [True], 1.5):
        with pytest.raises(ValueError, match="list of ranks"):
            hvd.ProcessSet(wrong)
    works()


@on_ranks(2)
def test_wrong_splits_raise_on_every_rank() -> None:
    wrong: list[tuple[object, int]] = [
        (torch.tensor([[1, 1]], dtype=torch.int32), 2),
        (torch.tensor([1, 1], dtype=torch.int64), 2),
        (torch.tensor([1.0, 1.0]), 2),
        ([1.5, 0.5], 2),
        ([1, 1, 1], 3),
        ([2], 2),
        ([2, 1], 2),
        ([-1, 2], 2),
        (None, 3),
    ]
    for splits, rows in wrong:
        # Only the last rank is wrong; the other hears what is the matter, and with whom.
        if hvd.rank() == 1:
            with pytest.raises(ValueError):  # noqa: PT011
                hvd.alltoall(torch.ones(rows), splits=splits)
        else:
            with pytest.raises(HorovodInternalError, match="rank 1"):
                hvd.alltoall(torch.ones(2), splits=[1, 1])
    works()


@on_ranks(2)
def test_reducescatter_of_scalars_and_by_other_reductions() -> None:
    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(HorovodInternalError):
            hvd.reducescatter(torch.ones(2), op=op)
        with pytest.raises(HorovodInternalError):
            hvd.grouped_reducescatter([torch.ones(2)], op=op)
    with pytest.raises(ValueError, match="scalar"):
        hvd.reducescatter(torch.tensor(1.0))
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="scalar"):
            hvd.reducescatter(torch.tensor(1.0), name="one scalar")
    else:
        with pytest.raises(HorovodInternalError, match="rank 0"):
            hvd.reducescatter(torch.ones(2), name="one scalar")
    works()


@on_ranks(2)
def test_types_that_no_reduction_knows() -> None:
    for tensor in (torch.ones(2, dtype=torch.complex64), torch.ones(2).to_sparse()):
        for operation in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(ValueError, match="not supported"):
                operation(tensor)
        with pytest.raises(ValueError, match="not supported"):
            hvd.broadcast(tensor, 0)
        with pytest.raises(ValueError, match="not supported"):
            hvd.grouped_allreduce([torch.ones(2), tensor])
    with pytest.raises(ValueError, match="complex64"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="sparse COO"):
        hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum)
    with pytest.raises(ValueError, match="Average and Sum"):
        hvd.sparse_allreduce_async(torch.ones(2).to_sparse(), "max", hvd.Max)
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="complex64"):
            hvd.allreduce(torch.ones(2, dtype=torch.complex64), name="one complex")
    else:
        with pytest.raises(HorovodInternalError, match="complex64"):
            hvd.allreduce(torch.ones(2), name="one complex")
    works()


@on_ranks(2)
def test_op_and_average_together_and_reductions_that_do_not_exist() -> None:
    for operation in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_):
        with pytest.raises(ValueError, match="op parameter supersedes average"):
            operation(torch.ones(2), average=True, op=hvd.Sum)
    for operation in (hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allreduce_async_):
        with pytest.raises(ValueError, match="op parameter supersedes average"):
            operation([torch.ones(2)], average=True, op=hvd.Sum)
    with pytest.raises(ValueError):  # noqa: PT011
        hvd.allreduce(torch.ones(2), op=17)
    with pytest.raises(ValueError, match="at least one tensor"):
        hvd.grouped_allreduce([])
    works()


@on_ranks(2)
def test_a_group_is_on_one_device() -> None:
    with pytest.raises(HorovodInternalError, match="one device"):
        hvd.grouped_allreduce([torch.ones(2), torch.ones(2, device="meta")])
    works()


@on_ranks(3)
def test_adasum_needs_a_power_of_two_and_all_ranks() -> None:
    with pytest.raises(NotImplementedError, match="power of 2"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(NotImplementedError, match="power of 2"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)
    pair = hvd.add_process_set([0, 1])
    with pytest.raises(NotImplementedError, match="process set"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum, process_set=pair)
    with pytest.raises(NotImplementedError, match="process set"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum, process_set=pair)
    hvd.remove_process_set(pair)
    works()


@on_ranks(2, 3)
def test_ranks_that_disagree_all_hear_both_sides() -> None:
    odd = hvd.rank() == hvd.size() - 1
    ones = torch.ones
    disagreements: list[tuple[Callable[[], object], tuple[str, str]]] = [
        (lambda: hvd.allreduce(ones(2, dtype=torch.float64 if odd else torch.float32)), ("float32", "float64")),
        (lambda: hvd.broadcast(ones(2, dtype=torch.int64 if odd else torch.int32), 0), ("int32", "int64")),
        (lambda: hvd.allgather(ones(2, dtype=torch.int8 if odd else torch.uint8)), ("uint8", "int8")),
        (lambda: hvd.alltoall(ones(6, dtype=torch.int8 if odd else torch.uint8)), ("uint8", "int8")),
        (lambda: hvd.reducescatter(ones(6, dtype=torch.float64 if odd else torch.float32)), ("float32", "float64")),
        (lambda: hvd.allreduce(ones(3 if odd else 2)), ("2", "3")),
        (lambda: hvd.allreduce(ones((2, 3) if odd else (3, 2))), ("3", "2")),
        (lambda: hvd.broadcast(ones(3 if odd else 2), 0), ("2", "3")),
        (lambda: hvd.reducescatter(ones(7 if odd else 6)), ("6", "7")),
        (lambda: hvd.allreduce(ones(2), prescale_factor=0.5 if odd else 0.25), ("0.25", "0.5")),
        (lambda: hvd.allreduce(ones(2), postscale_factor=0.5 if odd else 0.25), ("0.25", "0.5")),
        (lambda: hvd.reducescatter(ones(2), prescale_factor=0.5 if odd else 0.25), ("0.25", "0.5")),
        (lambda: hvd.allreduce(ones(2), op=hvd.Max if odd else hvd.Min), ("(?i)min", "(?i)max")),
        (lambda: hvd.allgather(torch.tensor(1.0)), ("scalar|dimensions", ".")),
        (lambda: hvd.alltoall(torch.tensor(1.0)), ("scalar|dimensions", ".")),
        (lambda: hvd.alltoall(torch.tensor(1.0) if odd else ones(6)), ("scalar|dimensions", ".")),
        (lambda: hvd.allgather(ones((2, 2) if odd else (2,))), ("tensor of rank 1", "tensor of rank 2")),
        (lambda: hvd.alltoall(ones((6, 2) if odd else (6,))), ("tensor of rank 1", "tensor of rank 2")),
        (lambda: hvd.allgather(ones(2, 5 if odd else 4)), ("4", "5")),
        (lambda: hvd.alltoall(ones(6, 5 if odd else 4)), ("4", "5")),
        (lambda: hvd.broadcast(ones(2), 1 if odd else 0), ("0", "1")),
        (lambda: hvd.grouped_allreduce([ones(2), ones(3 if odd else 2)]), ("2", "3")),
        (lambda: hvd.grouped_allgather([ones(2), ones(2, 5 if odd else 4)]), ("4", "5")),
        (lambda: hvd.grouped_reducescatter([ones(6), ones(6, 5 if odd else 4)]), ("4", "5")),
    ]
    for number, (call, (one, other)) in enumerate(disagreements):
        with pytest.raises(HorovodInternalError, match=one) as error:
            call()
        assert error.match(other), number
        works()


@on_ranks(2, 3)
def test_one_name_for_two_operations() -> None:
    # Names are the whole key on which ranks meet, so the operation is made to differ below the names it is part of.
    from ronde import _core

    ones = torch.ones(2, device="cpu")
    place = (ones.data_ptr(), [2], 7)
    if hvd.rank() == 0:
        handle = _core.enqueue_allgather(0, "one name", [place], False)
    else:
        handle = _core.enqueue_allreduce(0, "one name", ones.data_ptr(), ones.data_ptr(), [2], 7, 1, 1.0, 1.0, 0)
    with pytest.raises(HorovodInternalError, match=r"(?i)allgather") as error:
        _core.wait(handle)
    assert error.match("(?i)allreduce")
    works()


@on_ranks(2, 3)
def test_a_rank_whose_gpu_cannot_be_used_tells_the_others() -> None:
    # Without a GPU a stream fails as one does whose GPU has failed: where the operation is started.
    from ronde import _core

    if DEVICE.type == "cuda":
        return
    ones = torch.ones(2, device="cpu")
    place = (ones.data_ptr(), ones.data_ptr(), [2], 7)
    for turn, grouped in enumerate((False, True)):
        name, stream = f"without a GPU {turn}", 1 if hvd.rank() == 1 else None

        def start(name: str = name, stream: int | None = stream, grouped: bool = grouped) -> int:
            if grouped:
                return _core.enqueue_grouped_allreduce(0, name, [place, place], 1, 1.0, 1.0, 0, False, stream)
            return _core.enqueue_allreduce(0, name, *place, 1, 1.0, 1.0, 0, False, stream)

        if stream is None:
            with pytest.raises(HorovodInternalError, match="rank 1"):
                _core.wait(start())
        else:
            with pytest.raises(HorovodInternalError):
                start()
        works()


@on_ranks(3)
def test_what_cannot_be_done_while_a_rank_has_joined() -> None:
    operations: list[Callable[[], object]] = [
        lambda: hvd.allgather(torch.ones(2)),
        lambda: hvd.broadcast(torch.ones(2), 0),
        lambda: hvd.alltoall(torch.ones(3)),
        lambda: hvd.reducescatter(torch.ones(3)),
    ]
    if hvd.rank() != 1:
        for operation in operations:
            with pytest.raises(HorovodInternalError, match=r"(?i)join"):
                operation()
        assert hvd.allreduce(torch.ones(2), name="while joined", op=hvd.Sum).tolist() == [2.0, 2.0]
    hvd.join()
    # The unnamed calls above were counted on two ranks of three; after a join all count alike.
    works()


@on_ranks(2)
def test_a_failed_operation_leaves_the_others_alone() -> None:
    good = hvd.allreduce_async(torch.ones(2), name="good", op=hvd.Sum)
    bad = hvd.allreduce_async(torch.ones(2 + hvd.rank()), name="bad")
    with pytest.raises(HorovodInternalError, match="bad"):
        hvd.synchronize(bad)
    assert hvd.synchronize(good).tolist() == [2.0, 2.0]
    assert hvd.synchronize(bad) is None
    works()


def refuses_wrong_process_sets_at_init() -> None:
    for wrong in ("static", [[0]], 5, [hvd.ProcessSet([0]), hvd.ProcessSet([0])]):
        with pytest.raises((ValueError, TypeError)):
            hvd.init(process_sets=wrong)
    with pytest.raises(ValueError, match="comm"):
        hvd.init(comm="world")

    class Communicator:
        """Looks like one of mpi4py."""

        def Get_group(self) -> None:  # noqa: N802
            """Do nothing."""

    with pytest.raises(NotImplementedError):
        hvd.init(process_sets=[hvd.ProcessSet(Communicator())])
    with pytest.raises(ValueError, match="comm"):
        hvd.init(comm=Communicator())
    evens, odds = hvd.ProcessSet([0]), hvd.ProcessSet([1])
    hvd.init(process_sets=[evens, odds])
    assert (evens.process_set_id, odds.process_set_id) == (1, 2)
    mine = evens if evens.included() else odds
    assert hvd.allreduce(torch.tensor([5]), op=hvd.Sum, process_set=mine).item() == 5
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.add_process_set([0, 1])
    with pytest.raises(ValueError, match="HOROVOD_TIMELINE"):
        hvd.start_timeline("timeline.json")
    hvd.stop_timeline()
    works()
    hvd.barrier()


def test_process_sets_of_init_are_fixed_and_wrong_ones_are_refused() -> None:
    path = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(all_ranks_pass.__code__.co_filename)])  # noqa: PTH120
    all_ranks_pass(2, refuses_wrong_process_sets_at_init, PYTHONPATH=path)
