"""Every operation gives what its definition says: all types, one to three dimensions, all ranks or some of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
import ronde
from together import on_ranks

WHOLE = [tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64]
REAL = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
EVERY = [*WHOLE, *REAL, tf.bool]
SHAPES = [(17,), (3, 5), (2, 3, 4)]


def numbers(rank: int, shape: tuple[int, ...], rows: int | None = None) -> Any:
    """Return what a rank contributes: small whole numbers, different on each rank, exact in every type."""
    if rows is not None:
        shape = (rows, *shape[1:])
    count = int(np.prod(shape))
    return ((np.arange(count) * (rank + 1) + rank) % 5).reshape(shape)


def mine(shape: tuple[int, ...], dtype: tf.DType, rows: int | None = None) -> tf.Tensor:
    return tf.cast(tf.constant(numbers(hvd.rank(), shape, rows)), dtype)


def sets() -> Iterator[hvd.ProcessSet]:
    """Yield all ranks, and a set that leaves rank 0 out, on those that belong to it."""
    yield hvd.global_process_set
    some = hvd.add_process_set(list(range(1, hvd.size())))
    if some.included():
        yield some
    ronde.barrier()
    assert hvd.remove_process_set(some)


def cases(
    dtypes: list[tf.DType], shapes: list[tuple[int, ...]] = SHAPES
) -> Iterator[tuple[hvd.ProcessSet, list[int], tuple[int, ...], tf.DType]]:
    for process_set in sets():
        for dtype, shape in itertools.product(dtypes, shapes):
            assert process_set.ranks is not None
            yield process_set, process_set.ranks, shape, dtype


def everybodys(ranks: list[int], shape: tuple[int, ...]) -> Any:
    """Return what the ranks contribute, one after the other, wide enough that nothing computed of it overflows."""
    return np.stack([numbers(rank, shape) for rank in ranks])


def same(found: tf.Tensor, expected: Any, dtype: tf.DType) -> None:
    """Fail unless a tensor is of that type and has those numbers, as they are in that type."""
    wanted = tf.cast(tf.constant(expected), dtype)
    assert found.dtype == dtype
    assert found.shape == wanted.shape
    assert bool(tf.reduce_all(tf.equal(found, wanted))), f"{found} is not {wanted}"


def close(found: tf.Tensor, expected: Any) -> None:
    np.testing.assert_allclose(tf.cast(found, tf.float64).numpy(), expected, rtol=1e-2, atol=1e-2)


@on_ranks(2, 3)
def test_allreduce_adds_up_averages_and_compares() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        everybody = everybodys(ranks, shape)
        own = mine(shape, dtype)
        where = {"process_set": process_set}
        same(hvd.allreduce(own, op=hvd.Sum, **where), everybody.sum(0), dtype)
        same(hvd.allreduce(own, op=hvd.Min, **where), everybody.min(0), dtype)
        same(hvd.allreduce(own, op=hvd.Max, **where), everybody.max(0), dtype)
        same(hvd.allreduce(own, op=hvd.Product, **where), everybody.prod(0), dtype)
        average = hvd.allreduce(own, **where)
        if dtype.is_floating:
            assert average.dtype == dtype
            close(average, everybody.mean(0))
        else:
            same(average, everybody.sum(0) // len(ranks), dtype)


@on_ranks(2, 3)
def test_allreduce_with_factors_compression_and_the_old_argument() -> None:
    for process_set, ranks, shape, dtype in cases(REAL, [(3, 5)]):
        everybody = everybodys(ranks, shape)
        own = mine(shape, dtype)
        where = {"process_set": process_set}
        close(
            hvd.allreduce(own, prescale_factor=0.5, postscale_factor=3.0, op=hvd.Sum, **where), everybody.sum(0) * 1.5
        )
        close(hvd.allreduce(own, prescale_factor=2.0, postscale_factor=0.25, **where), everybody.mean(0) / 2)
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16, hvd.Compression.none):
            found = hvd.allreduce(own, compression=compression, op=hvd.Sum, **where)
            same(found, everybody.sum(0), dtype)
        same(hvd.allreduce(own, average=False, **where), everybody.sum(0), dtype)
        close(hvd.allreduce(own, average=True, **where), everybody.mean(0))
    same(
        hvd.allreduce(mine((3,), tf.int32), compression=hvd.Compression.fp16, op=hvd.Sum),
        everybodys(all_ranks(), (3,)).sum(0),
        tf.int32,
    )


def all_ranks() -> list[int]:
    return list(range(hvd.size()))


@on_ranks(2)
def test_adasum_of_two_ranks() -> None:
    own = tf.constant([1.0, 0.0]) if hvd.rank() == 0 else tf.constant([0.0, 2.0])
    np.testing.assert_allclose(hvd.allreduce(own, op=hvd.Adasum).numpy(), [1.0, 2.0], rtol=1e-5)
    equal = hvd.grouped_allreduce([tf.constant([3.0, 4.0])] * 2, op=hvd.Adasum)
    for found in equal:
        np.testing.assert_allclose(found.numpy(), [3.0, 4.0], rtol=1e-5)


@on_ranks(2, 3)
def test_grouped_allreduce_of_one_or_several_types() -> None:
    for process_set, ranks, shape, dtype in cases([tf.int32, tf.float16, tf.bfloat16, tf.float64], [(3, 5)]):
        everybody = everybodys(ranks, shape)
        group = [mine(shape, dtype), mine(shape, dtype) * 2, mine(shape, tf.float32)]
        found = hvd.grouped_allreduce(group, op=hvd.Sum, process_set=process_set)
        assert isinstance(found, list)
        same(found[0], everybody.sum(0), dtype)
        same(found[1], everybody.sum(0) * 2, dtype)
        same(found[2], everybody.sum(0), tf.float32)
    assert hvd.grouped_allreduce([]) == []


@on_ranks(2, 3)
def test_allgather_of_unequal_rows_alone_and_in_groups() -> None:
    for process_set, ranks, shape, dtype in cases(EVERY):
        expected = np.concatenate([numbers(rank, shape, rank + 1) for rank in ranks])
        own = mine(shape, dtype, hvd.rank() + 1)
        same(hvd.allgather(own, process_set=process_set), expected, dtype)
        first, second = hvd.grouped_allgather([own, own[:1]], process_set=process_set)
        same(first, expected, dtype)
        same(second, np.concatenate([numbers(rank, shape, rank + 1)[:1] for rank in ranks]), dtype)
    empty = tf.zeros([0 if hvd.rank() == 0 else 2, 3])
    assert hvd.allgather(empty).shape == (2 * (hvd.size() - 1), 3)


@on_ranks(2, 3)
def test_broadcast_from_every_rank() -> None:
    for process_set, ranks, shape, dtype in cases(EVERY):
        for root in ranks:
            same(hvd.broadcast(mine(shape, dtype), root, process_set=process_set), numbers(root, shape), dtype)
    same(hvd.broadcast(tf.constant(hvd.rank() + 5), 1), 6, tf.int32)


@on_ranks(2, 3)
def test_alltoall_with_and_without_splits() -> None:
    for process_set, ranks, shape, dtype in cases(EVERY):
        place, size = process_set.rank(), len(ranks)
        even = hvd.alltoall(mine(shape, dtype, 2 * size), process_set=process_set)
        same(even, np.concatenate([numbers(rank, shape, 2 * size)[2 * place : 2 * place + 2] for rank in ranks]), dtype)
        # Every rank sends j + 1 rows to the j-th, and keeps one back.
        rows = sum(range(1, size + 1))
        splits = list(range(1, size + 1))
        for given in (splits, tf.constant(splits), np.array(splits, np.int32)):
            found, received = hvd.alltoall(mine(shape, dtype, rows + 1), given, process_set=process_set)
            start = sum(splits[:place])
            parts = [numbers(rank, shape, rows + 1)[start : start + place + 1] for rank in ranks]
            same(found, np.concatenate(parts), dtype)
            same(received, [place + 1] * size, tf.int32)


@on_ranks(2, 3)
def test_reducescatter_shares_out_rows() -> None:
    for process_set, ranks, shape, dtype in cases([*WHOLE, *REAL]):
        place, size = process_set.rank(), len(ranks)
        rows = 2 * size + 1
        # The first rank gets one row more.
        start = 0 if place == 0 else 2 * place + 1
        total = sum(numbers(rank, shape, rows) for rank in ranks)[start : start + 2 + (place == 0)]
        own = mine(shape, dtype, rows)
        same(hvd.reducescatter(own, op=hvd.Sum, process_set=process_set), total, dtype)
        average = hvd.reducescatter(own, process_set=process_set)
        if dtype.is_floating:
            close(average, total / size)
            scaled = hvd.reducescatter(
                own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, process_set=process_set
            )
            close(scaled, total * 2)
            same(
                hvd.reducescatter(own, compression=hvd.Compression.bf16, op=hvd.Sum, process_set=process_set),
                total,
                dtype,
            )
        else:
            same(average, total // size, dtype)
        group = hvd.grouped_reducescatter([own, own * 2], op=hvd.Sum, process_set=process_set)
        same(group[0], total, dtype)
        same(group[1], total * 2, dtype)


@on_ranks(2, 3)
def test_slices_are_gathered() -> None:
    rank, size = hvd.rank(), hvd.size()
    own = tf.IndexedSlices(tf.fill([2, 3], float(rank + 1)), tf.constant([0, rank + 1]), tf.constant([size + 1, 3]))
    for op in (hvd.Sum, hvd.Average):
        found = hvd.allreduce(own, op=op)
        assert isinstance(found, tf.IndexedSlices)
        dense = np.zeros([size + 1, 3], np.float32)
        for other in range(size):
            dense[0] += other + 1
            dense[other + 1] += other + 1
        np.testing.assert_allclose(
            tf.convert_to_tensor(found).numpy(), dense / (1 if op == hvd.Sum else size), rtol=1e-6
        )
    mixed = hvd.grouped_allreduce([tf.constant([1.0]), own, tf.constant([2.0])], op=hvd.Sum)
    assert [float(mixed[0][0]), float(mixed[2][0])] == [size, 2.0 * size]
    np.testing.assert_allclose(tf.convert_to_tensor(mixed[1]).numpy(), dense, rtol=1e-6)


@on_ranks(2)
def test_variables_arrays_and_lists_are_taken_as_tensors() -> None:
    for value in (tf.Variable([1.0, 2.0]), np.array([1.0, 2.0], np.float32), [1.0, 2.0]):
        same(hvd.allreduce(value, op=hvd.Sum), [2.0, 4.0], tf.float32)
        same(hvd.allgather(value), [1.0, 2.0, 1.0, 2.0], tf.float32)
        same(hvd.broadcast(value, 0), [1.0, 2.0], tf.float32)
        same(hvd.alltoall(value), [1.0, 1.0] if hvd.rank() == 0 else [2.0, 2.0], tf.float32)
        same(hvd.reducescatter(value, op=hvd.Sum), [2.0] if hvd.rank() == 0 else [4.0], tf.float32)


@on_ranks(2, 3)
def test_empty_tensors_and_scalars() -> None:
    for shape in ([0], [0, 3], [3, 0]):
        assert hvd.allreduce(tf.zeros(shape)).shape == shape
        assert hvd.broadcast(tf.zeros(shape), 0).shape == shape
    same(hvd.allreduce(tf.constant(2), op=hvd.Sum), 2 * hvd.size(), tf.int32)
    assert hvd.allgather(tf.zeros([0, 3])).shape == [0, 3]


@on_ranks(2, 3)
def test_the_size_family_is_looked_up_when_it_runs() -> None:
    for process_set in sets():
        assert process_set.process_set_id is not None
        assert int(hvd.size_op(process_set.process_set_id)) == process_set.size()
        assert int(hvd.process_set_included_op(process_set.process_set_id)) == 1
    some = hvd.add_process_set([1])
    assert int(hvd.process_set_included_op(some.process_set_id)) == int(hvd.rank() == 1)
    assert int(hvd.size_op(some.process_set_id)) == 1
    ronde.barrier()
    hvd.remove_process_set(some)
    assert int(hvd.process_set_included_op(99)) == -3
    assert [int(op()) for op in (hvd.size_op, hvd.rank_op, hvd.local_size_op, hvd.local_rank_op)] == [
        hvd.size(),
        hvd.rank(),
        hvd.local_size(),
        hvd.local_rank(),
    ]


@on_ranks(2, 3)
def test_unnamed_operations_still_meet_after_a_join() -> None:
    for _ in range(hvd.rank()):
        hvd.allreduce(tf.ones([2]), op=hvd.Sum)
    hvd.join()
    same(hvd.allreduce(tf.ones([1]), op=hvd.Sum), [hvd.size()], tf.float32)
    same(hvd.broadcast(tf.constant([hvd.rank()]), 1), [1], tf.int32)


@on_ranks(2, 3)
def test_a_rank_without_data_joins() -> None:
    steps = 2 + hvd.rank()
    for step in range(steps):
        total = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="uneven")
        there = sum(1 for rank in range(hvd.size()) if step < 2 + rank)
        assert total.numpy().tolist() == [there, there]
    assert int(hvd.join()) == hvd.size() - 1
    same(hvd.allreduce(tf.ones([1]), op=hvd.Sum), [hvd.size()], tf.float32)
