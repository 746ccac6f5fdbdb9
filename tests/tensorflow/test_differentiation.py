"""Gradients through the collectives, against what they are on paper; eagerly and in functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
import ronde
from together import on_ranks

TYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]


def gradient(function: Callable[[Any], Any], value: Any, weights: Any, in_graph: bool) -> Any:
    """Return the gradient of the weighted sum of what a function makes of a value."""

    def compute(value: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(value)
            result = function(value)
        return tape.gradient(result, value, output_gradients=weights)

    found = (tf.function(compute) if in_graph else compute)(value)
    return tf.nest.map_structure(lambda item: tf.cast(item, tf.float64).numpy(), found)


def both_ways(check: Callable[[bool, tf.DType], None]) -> None:
    for in_graph in (False, True):
        for dtype in TYPES:
            check(in_graph, dtype)


@on_ranks(2, 3)
def test_of_allreduce() -> None:
    def check(in_graph: bool, dtype: tf.DType) -> None:
        value = tf.cast(tf.range(6), dtype)
        weights = tf.cast(tf.fill([6], hvd.rank() + 1), dtype)
        total = sum(range(1, hvd.size() + 1))
        for op, expected in ((hvd.Sum, total), (hvd.Average, total / hvd.size())):
            found = gradient(lambda item, op=op: hvd.allreduce(item, op=op), value, weights, in_graph)
            np.testing.assert_allclose(found, np.full(6, expected), rtol=1e-2)
        scaled = gradient(
            lambda item: hvd.allreduce(item, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
            value,
            weights,
            in_graph,
        )
        np.testing.assert_allclose(scaled, np.full(6, 2.0 * total), rtol=1e-2)
        packed = gradient(
            lambda item: hvd.allreduce(item, op=hvd.Sum, compression=hvd.Compression.fp16), value, weights, in_graph
        )
        np.testing.assert_allclose(packed, np.full(6, total), rtol=1e-2)

    both_ways(check)


@on_ranks(2, 3)
def test_of_a_group() -> None:
    def check(in_graph: bool, dtype: tf.DType) -> None:
        values = [tf.cast(tf.range(4), dtype), tf.cast(tf.range(6), dtype)]
        weights = [tf.cast(tf.fill([count], hvd.rank() + 1), dtype) for count in (4, 6)]
        total = sum(range(1, hvd.size() + 1))
        found = gradient(lambda items: hvd.grouped_allreduce(items, op=hvd.Sum), values, weights, in_graph)
        for item, count in zip(found, (4, 6)):
            np.testing.assert_allclose(item, np.full(count, total), rtol=1e-2)
        # Of what is not used the gradient is zero, and the exchange takes place all the same.
        (unused, used) = gradient(
            lambda items: hvd.grouped_allreduce(items, op=hvd.Sum)[1], values, weights[1], in_graph
        )
        np.testing.assert_allclose(unused, np.zeros(4))
        np.testing.assert_allclose(used, np.full(6, total), rtol=1e-2)

    both_ways(check)


@on_ranks(2, 3)
def test_of_allgather() -> None:
    rank, size = hvd.rank(), hvd.size()
    rows = size * (size + 1) // 2

    def check(in_graph: bool, dtype: tf.DType) -> None:
        value = tf.zeros([rank + 1, 2], dtype)
        # Row i weighs i on rank 0, 2 i on rank 1 and so on: their average is what comes back.
        weights = tf.cast(tf.range(rows)[:, tf.newaxis] * (rank + 1), dtype) * tf.ones([1, 2], dtype)
        begin = rank * (rank + 1) // 2
        expected = np.arange(begin, begin + rank + 1)[:, None] * np.ones([1, 2]) * (size + 1) / 2
        np.testing.assert_allclose(gradient(hvd.allgather, value, weights, in_graph), expected, rtol=1e-2)
        found = gradient(hvd.grouped_allgather, [value, tf.identity(value)], [weights, weights * 2], in_graph)
        np.testing.assert_allclose(found[0], expected, rtol=1e-2)
        np.testing.assert_allclose(found[1], expected * 2, rtol=1e-2)

    both_ways(check)


@on_ranks(2, 3)
def test_of_broadcast() -> None:
    def check(in_graph: bool, dtype: tf.DType) -> None:
        for root in range(hvd.size()):
            weights = tf.cast(tf.fill([3], hvd.rank() + 1), dtype)
            found = gradient(lambda item, root=root: hvd.broadcast(item, root), tf.zeros([3], dtype), weights, in_graph)
            average = (hvd.size() + 1) / 2 if hvd.rank() == root else 0.0
            np.testing.assert_allclose(found, np.full(3, average), rtol=1e-2)

    both_ways(check)


@on_ranks(2, 3)
def test_of_alltoall() -> None:
    rank, size = hvd.rank(), hvd.size()
    splits = [place + 1 for place in range(size)]

    def check(in_graph: bool, dtype: tf.DType) -> None:
        # One row more than the splits send: nothing comes back for it.
        value = tf.zeros([sum(splits) + 1, 2], dtype)
        weights = tf.cast(tf.fill([(rank + 1) * size, 2], rank + 1), dtype)
        found = gradient(lambda item: hvd.alltoall(item, splits)[0], value, weights, in_graph)
        expected = np.repeat([*splits, 0.0], [*splits, 1])[:, None] * np.ones([1, 2])
        np.testing.assert_allclose(found, expected, rtol=1e-2)
        even = gradient(
            hvd.alltoall, tf.zeros([size, 1], dtype), tf.fill([size, 1], tf.cast(rank + 1, dtype)), in_graph
        )
        np.testing.assert_allclose(even, np.arange(1.0, size + 1)[:, None], rtol=1e-2)

    both_ways(check)


@on_ranks(2, 3)
def test_of_reducescatter() -> None:
    rank, size = hvd.rank(), hvd.size()

    def check(in_graph: bool, dtype: tf.DType) -> None:
        value = tf.zeros([size + 1, 2], dtype)
        mine = 2 if rank == 0 else 1
        weights = tf.cast(tf.fill([mine, 2], rank + 1), dtype)
        expected = np.repeat(np.arange(1.0, size + 1), [2] + [1] * (size - 1))[:, None] * np.ones([1, 2])
        for op, factor in ((hvd.Average, 1), (hvd.Sum, size)):
            found = gradient(lambda item, op=op: hvd.reducescatter(item, op=op), value, weights, in_graph)
            np.testing.assert_allclose(found, expected * factor, rtol=1e-2)
            scaled = gradient(
                lambda item, op=op: hvd.reducescatter(item, op=op, prescale_factor=0.5, postscale_factor=3.0),
                value,
                weights,
                in_graph,
            )
            np.testing.assert_allclose(scaled, expected * factor * 1.5, rtol=1e-2)
        group = gradient(
            lambda items: hvd.grouped_reducescatter(items, op=hvd.Sum),
            [value, tf.identity(value)],
            [weights, weights],
            in_graph,
        )
        for found in group:
            np.testing.assert_allclose(found, expected * size, rtol=1e-2)

    both_ways(check)


@on_ranks(3)
def test_in_a_process_set() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        place = pair.rank()
        for in_graph in (False, True):
            rows = gradient(
                lambda item: hvd.allgather(item, process_set=pair),
                tf.zeros([place + 1]),
                tf.constant([1.0, 2.0, 3.0]) * (place + 1),
                in_graph,
            )
            np.testing.assert_allclose(rows, [[1.5], [3.0, 4.5]][place])
            total = gradient(
                lambda item: hvd.reducescatter(item, op=hvd.Sum, process_set=pair),
                tf.zeros([2]),
                tf.constant([place + 1.0]),
                in_graph,
            )
            np.testing.assert_allclose(total, [2.0, 4.0])
    ronde.barrier()
    hvd.remove_process_set(pair)


@on_ranks(2)
def test_second_derivatives() -> None:
    value = tf.constant(3.0)
    with tf.GradientTape() as outer:
        outer.watch(value)
        with tf.GradientTape() as inner:
            inner.watch(value)
            cube = hvd.allreduce(value**3, op=hvd.Average)
        first = inner.gradient(cube, value)
    assert float(first) == 27.0
    assert float(outer.gradient(first, value)) == 18.0


@on_ranks(2)
def test_of_sessions() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        value = tf.constant([1.0, 2.0])
        total = hvd.allreduce(value * value, op=hvd.Sum)
        (found,) = tf.gradients(total, [value], grad_ys=[tf.constant([1.0, 1.0]) * (hvd.rank() + 1)])
        np.testing.assert_allclose(session.run(found), [6.0, 12.0])
