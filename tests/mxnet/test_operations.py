"""Every collective on every type and several shapes, on all ranks and on some, against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import horovod.mxnet as hvd
from ronde.mxnet import memory
from together import on_ranks

WHOLE = ["uint8", "int8", "int32", "int64"]
REAL = ["float16", "float32", "float64"]
SHAPES = [(17,), (5, 3), (4, 2, 3)]


def numbers(rank: int, shape: tuple[int, ...], dtype: str, rows: int | None = None) -> Any:
    """Return what a rank contributes: small whole numbers, which all types hold exactly."""
    if rows is not None:
        shape = (rows, *shape[1:])
    return ((np.arange(np.prod(shape)) * (rank + 2) + rank) % 5).reshape(shape).astype(dtype)


def array(values: Any) -> mx.nd.NDArray:
    return mx.nd.array(values, dtype=values.dtype)


def everybodys(ranks: list[int], shape: tuple[int, ...]) -> Any:
    """Return what the ranks contribute, one after the other, wide enough that nothing computed of it overflows."""
    return np.stack([numbers(rank, shape, "int64") for rank in ranks])


def same(found: mx.nd.NDArray, expected: Any) -> None:
    values = found.asnumpy()
    assert values.dtype == expected.dtype
    assert values.shape == expected.shape
    np.testing.assert_array_equal(values, expected)


def cases(types: list[str]) -> Iterator[tuple[hvd.ProcessSet, list[int], tuple[int, ...], str]]:
    """Go through sets, shapes and types: all ranks, and the last two where there are more."""
    sets = [hvd.global_process_set]
    last = None
    if hvd.size() > 2:
        last = hvd.add_process_set([hvd.size() - 2, hvd.size() - 1])
        sets.append(last)
    for process_set, shape, dtype in itertools.product(sets, SHAPES, types):
        if process_set.included():
            yield process_set, process_set.ranks or [], shape, dtype
    if last is not None:
        hvd.remove_process_set(last)


@on_ranks(2, 3)
def test_allreduce_adds_up_in_all_forms() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        mine = array(numbers(hvd.rank(), shape, dtype))
        kept = mine.asnumpy()
        expected = everybodys(ranks, shape).sum(0).astype(dtype)
        how: dict[str, Any] = {"op": hvd.Sum, "process_set": process_set}
        same(hvd.allreduce(mine, **how), expected)
        both = hvd.grouped_allreduce([mine, mine], **how)
        assert isinstance(both, list)
        same(both[0], expected)
        same(both[1], expected)
        same(mine, kept)
        other = mine.copy()
        first, second = hvd.grouped_allreduce_([mine, other], **how)
        assert first is mine
        assert second is other
        same(mine, expected)
        same(other, expected)
        mine[:] = kept
        assert hvd.allreduce_(mine, **how) is mine
        same(mine, expected)


@on_ranks(2, 3)
def test_allreduce_averages_by_default_and_exactly_for_whole_numbers() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        found = hvd.allreduce(array(numbers(hvd.rank(), shape, dtype)), process_set=process_set)
        exact = everybodys(ranks, shape).sum(0) / len(ranks)
        if dtype in WHOLE:
            same(found, np.trunc(exact).astype(dtype))
        else:
            np.testing.assert_allclose(found.asnumpy(), exact.astype(dtype), rtol=1e-3)


@on_ranks(2, 3)
def test_min_max_and_product() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        everybody = everybodys(ranks, shape)
        mine = array(numbers(hvd.rank(), shape, dtype))
        same(hvd.allreduce(mine, op=hvd.Min, process_set=process_set), everybody.min(0).astype(dtype))
        same(hvd.allreduce(mine, op=hvd.Max, process_set=process_set), everybody.max(0).astype(dtype))
        same(hvd.allreduce(mine, op=hvd.Product, process_set=process_set), everybody.prod(0).astype(dtype))


@on_ranks(2, 3)
def test_factors_are_applied_before_and_after() -> None:
    for process_set, ranks, shape, dtype in cases(REAL):
        mine = array(numbers(hvd.rank(), shape, dtype))
        how: dict[str, Any] = {"op": hvd.Sum, "process_set": process_set}
        expected = (everybodys(ranks, shape).sum(0) * 2).astype(dtype)
        same(hvd.allreduce(mine, prescale_factor=0.5, postscale_factor=4.0, **how), expected)
        same(hvd.grouped_allreduce([mine], prescale_factor=0.5, postscale_factor=4.0, **how)[0], expected)


@on_ranks(2)
def test_the_old_argument_average_still_works() -> None:
    ones = mx.nd.ones(2)
    same(hvd.allreduce(ones, average=False), np.float32([2, 2]))
    same(hvd.allreduce(ones, True), np.float32([1, 1]))
    same(hvd.allreduce_(ones, average=False), np.float32([2, 2]))


@on_ranks(2)
def test_adasum_keeps_equal_and_adds_orthogonal_vectors() -> None:
    same(hvd.allreduce(mx.nd.array([3.0, 4.0]), op=hvd.Adasum), np.float32([3, 4]))
    orthogonal = mx.nd.array(np.eye(2)[hvd.rank()])
    same(hvd.allreduce(orthogonal, op=hvd.Adasum), np.float32([1, 1]))


@on_ranks(2, 3)
def test_allgather_joins_unequal_rows() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        mine = array(numbers(hvd.rank(), shape, dtype, hvd.rank() + 1))
        expected = np.concatenate([numbers(rank, shape, dtype, rank + 1) for rank in ranks])
        same(hvd.allgather(mine, process_set=process_set), expected)
        first, second = hvd.grouped_allgather([mine, mine * 2], process_set=process_set)
        same(first, expected)
        same(second, expected * np.array(2, dtype))


@on_ranks(2, 3)
def test_broadcast_gives_the_roots_array() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        for root in ranks:
            mine = array(numbers(hvd.rank(), shape, dtype))
            kept = mine.asnumpy()
            expected = numbers(root, shape, dtype)
            same(hvd.broadcast(mine, root, process_set=process_set), expected)
            same(mine, kept)
            assert hvd.broadcast_(mine, root, process_set=process_set) is mine
            same(mine, expected)


@on_ranks(2, 3)
def test_reducescatter_shares_out_rows() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        mine = array(numbers(hvd.rank(), shape, dtype))
        shares = np.array_split(everybodys(ranks, shape).sum(0).astype(dtype), len(ranks))
        expected = shares[process_set.rank()]
        same(hvd.reducescatter(mine, op=hvd.Sum, process_set=process_set), expected)
        first, second = hvd.grouped_reducescatter([mine, mine], op=hvd.Sum, process_set=process_set)
        same(first, expected)
        same(second, expected)
        if dtype in REAL:
            twice = hvd.reducescatter(
                mine, op=hvd.Sum, process_set=process_set, prescale_factor=0.5, postscale_factor=4.0
            )
            same(twice, expected * np.array(2, dtype))
            mean = hvd.reducescatter(mine, process_set=process_set).asnumpy()
            np.testing.assert_allclose(mean, (expected / len(ranks)).astype(dtype), rtol=1e-3)


@on_ranks(3)
def test_a_share_may_be_empty() -> None:
    found = hvd.reducescatter(mx.nd.ones((2, 3)), op=hvd.Sum)
    assert found.shape == ((1, 3) if hvd.rank() < 2 else (0, 3))
    same(found, np.full(found.shape, 3, np.float32))


@on_ranks(2, 3)
def test_alltoall_with_and_without_splits() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        place, size = process_set.rank(), len(ranks)
        even = array(numbers(hvd.rank(), shape, dtype, 2 * size))
        parts = [numbers(rank, shape, dtype, 2 * size)[2 * place : 2 * place + 2] for rank in ranks]
        same(hvd.alltoall(even, process_set=process_set), np.concatenate(parts))
        # Rank r sends r + 1 rows to the first member, r + 2 to the second, and so on.
        sent = {rank: [rank + 1 + member for member in range(size)] for rank in ranks}
        mine = array(numbers(hvd.rank(), shape, dtype, sum(sent[hvd.rank()])))
        starts = {rank: sum(sent[rank][:place]) for rank in ranks}
        expected = np.concatenate(
            [
                numbers(rank, shape, dtype, sum(sent[rank]))[starts[rank] : starts[rank] + sent[rank][place]]
                for rank in ranks
            ]
        )
        counts = [sent[rank][place] for rank in ranks]
        for splits in (sent[hvd.rank()], mx.nd.array(sent[hvd.rank()], dtype="int32")):
            rows, received = hvd.alltoall(mine, splits, process_set=process_set)
            same(rows, expected)
            same(received, np.array(counts, "int32"))


@on_ranks(2)
def test_bool_and_bfloat16_travel_as_well() -> None:
    mine = mx.np.array([True, False, hvd.rank() == 0], dtype=bool)
    same(hvd.allreduce(mine, op=hvd.Max), np.array([True, False, True]))
    same(hvd.allreduce(mine, op=hvd.Min), np.array([True, False, False]))
    same(hvd.allgather(mine), np.array([True, False, True, True, False, False]))
    narrow = np.dtype([("bfloat16", np.uint16)])
    halves = mx.nd.amp_cast(mx.nd.full((2, 3), hvd.rank() + 0.5), dtype=narrow)
    assert hvd.allreduce(halves).dtype == narrow
    same(mx.nd.amp_cast(hvd.allreduce(halves, op=hvd.Sum), dtype="float32"), np.full((2, 3), 2, np.float32))
    gathered = mx.nd.amp_cast(hvd.allgather(halves), dtype="float32")
    same(gathered, np.repeat(np.float32([[0.5], [0.5], [1.5], [1.5]]), 3, axis=1))


@on_ranks(2)
def test_arrays_with_numpys_interface_stay_such() -> None:
    ones = mx.np.ones((2, 3))
    for found in (
        hvd.allreduce(ones, op=hvd.Sum),
        hvd.broadcast(ones, 0),
        hvd.allgather(ones),
        hvd.alltoall(ones),
        hvd.reducescatter(ones),
        hvd.grouped_allreduce([ones])[0],
    ):
        assert type(found) is mx.np.ndarray
    assert hvd.allreduce_(ones, op=hvd.Sum) is ones
    same(ones, np.full((2, 3), 2, np.float32))


@on_ranks(2)
def test_scalars_and_empty_arrays_of_numpys_interface() -> None:
    with mx.util.np_shape(True):
        assert hvd.allreduce(mx.np.array(3.0), op=hvd.Sum).asnumpy() == 6.0
        same(hvd.allreduce(mx.np.zeros((0, 3))), np.zeros((0, 3), np.float32))
        mine = mx.np.ones((2 * hvd.rank(), 3))
        same(hvd.allgather(mine), np.ones((2, 3), np.float32))


@on_ranks(2)
def test_slices_are_reduced_where_they_lie() -> None:
    whole = mx.nd.arange(8)
    assert hvd.allreduce_(whole[2:4], op=hvd.Sum).shape == (2,)
    # These two share memory, by which MXNet orders operations: it must not wait for itself.
    hvd.grouped_allreduce_([whole[4:5], whole[6:8]], op=hvd.Sum)
    same(hvd.allreduce(whole[0:2], op=hvd.Sum), np.float32([0, 2]))
    same(whole, np.float32([0, 1, 4, 6, 8, 5, 12, 14]))


@on_ranks(2)
def test_arrays_that_onednn_keeps_in_its_own_order() -> None:
    layer = mx.gluon.nn.Conv2D(16, 3, in_channels=8)
    layer.initialize(mx.init.Constant(0.01))
    images = mx.nd.array(np.random.default_rng(hvd.rank()).random((4, 8, 6, 6)))
    expected = hvd.allgather(layer(images).expand_dims(0)).asnumpy().sum(0)
    for found in (hvd.allreduce(layer(images), op=hvd.Sum), hvd.allreduce_(layer(images), op=hvd.Sum)):
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)
    with mx.autograd.record():
        loss = layer(images).square().sum()
    loss.backward()
    gradient = layer.weight.grad()
    expected = hvd.allgather(gradient.expand_dims(0)).asnumpy().sum(0)
    np.testing.assert_allclose(hvd.allreduce_(gradient, op=hvd.Sum).asnumpy(), expected, rtol=1e-5)


@on_ranks(2)
def test_what_is_not_in_the_cpus_memory_goes_through_a_copy() -> None:
    # There is no other memory here, so a second context of the CPU plays it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_on_host", lambda array: array.context.device_id == 0)
        ones = mx.nd.ones((2, 2), ctx=mx.cpu(1))
        twos = np.full((2, 2), 2, np.float32)
        found = hvd.allreduce(ones, op=hvd.Sum)
        assert found.context == mx.cpu(1)
        same(found, twos)
        same(hvd.allgather(ones), np.ones((4, 2), np.float32))
        same(hvd.reducescatter(ones, op=hvd.Sum), twos[:1])
        assert hvd.allreduce_(ones, op=hvd.Sum) is ones
        same(ones, twos)
        ones[:] = hvd.rank()
        same(hvd.broadcast_(ones, 1), np.ones((2, 2), np.float32))
