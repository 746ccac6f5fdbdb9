"""Batch normalisation over all ranks is that of one process with the whole batch: forward, statistics and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from together import on_ranks

SHAPES = [(12, 3), (12, 5, 4, 3)]


def batch(shape: tuple[int, ...], dtype: str = "float64") -> Any:
    """Return the whole batch, the same on every rank, with a mean far from zero."""
    numbers = np.random.default_rng(5)
    return (numbers.normal(size=shape) * [1.0, 3.0, 0.5] + [10.0, -5.0, 0.0]).astype(dtype)


def rows() -> slice:
    """Return which rows are this rank's: of 12, the first rank has one more than its share, the last one less."""
    size, rank = hvd.size(), hvd.rank()
    ends = [0, *[12 * (place + 1) // size + 1 for place in range(size - 1)], 12]
    return slice(ends[rank], ends[rank + 1])


def passes(layer: Any, values: Any, weights: Any, in_graph: bool) -> Any:
    """Run a layer forward and backward; return output, gradient of the input, gradients of the layer."""

    def run(values: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            output = layer(values, training=True)
            loss = tf.reduce_sum(output * weights)
        of_input, of_layer = tape.gradient(loss, [values, list(layer.trainable_weights)])
        return output, of_input, of_layer

    return (tf.function(run) if in_graph else run)(tf.constant(values), tf.constant(weights))


@on_ranks(2, 3)
def test_it_is_that_of_the_whole_batch() -> None:
    for in_graph in (False, True):
        for shape in SHAPES:
            values, weights = batch(shape), np.random.default_rng(6).normal(size=shape)
            alone = tf.keras.layers.BatchNormalization(dtype="float64", momentum=0.9, **unfused())
            together = hvd.SyncBatchNormalization(dtype="float64", momentum=0.9)
            output, of_input, of_layer = passes(alone, values, weights, False)
            mine = rows()
            found, found_of_input, found_of_layer = passes(together, values[mine], weights[mine], in_graph)
            np.testing.assert_allclose(found, output[mine], rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(found_of_input, of_input[mine], rtol=1e-5, atol=1e-6)
            for part, whole in zip(found_of_layer, of_layer):
                np.testing.assert_allclose(hvd.allreduce(part, op=hvd.Sum), whole, rtol=1e-5, atol=1e-5)
            for part, whole in zip(together.get_weights(), alone.get_weights()):
                np.testing.assert_allclose(part, whole, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(
                together(tf.constant(values), training=False), alone(tf.constant(values), training=False), rtol=1e-5
            )


def unfused() -> dict[str, Any]:
    """Return what tells Keras 2 to compute as it is written; Keras 3 knows no other way."""
    return {} if hasattr(tf.keras, "ops") else {"fused": False}


@on_ranks(2)
def test_channels_first_and_narrow_types() -> None:
    values = batch((12, 5, 3), "float32")
    alone = tf.keras.layers.BatchNormalization(axis=1, **unfused())
    together = hvd.SyncBatchNormalization(axis=1)
    first = np.ascontiguousarray(np.moveaxis(values, 2, 1))
    whole = alone(tf.constant(first), training=True)
    found = together(tf.constant(first[rows()]), training=True)
    np.testing.assert_allclose(found, whole[rows()], rtol=1e-4, atol=1e-4)
    narrow = hvd.SyncBatchNormalization(dtype="mixed_float16")
    result = narrow(tf.constant(batch((12, 3), "float16")[rows()]), training=True)
    assert result.dtype == tf.float16
    wide = tf.keras.layers.BatchNormalization(**unfused())(tf.constant(batch((12, 3), "float32")), training=True)
    np.testing.assert_allclose(tf.cast(result, tf.float32), wide[rows()], atol=3e-2)


@on_ranks(2)
def test_masked_positions_do_not_count() -> None:
    values = batch((12, 5, 3))
    mask = np.arange(5)[None, :] <= np.arange(12)[:, None] % 5
    layer = hvd.SyncBatchNormalization(dtype="float64", momentum=0.0)
    layer(tf.constant(values[rows()]), mask=tf.constant(mask[rows()]), training=True)
    counted = values[mask]
    np.testing.assert_allclose(layer.get_weights()[2], counted.mean(0), rtol=1e-6)
    np.testing.assert_allclose(layer.get_weights()[3], counted.var(0), rtol=1e-6)


@on_ranks(2)
def test_several_layers_in_one_model() -> None:
    tf.keras.utils.set_random_seed(3)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(4),
            hvd.SyncBatchNormalization(),
            tf.keras.layers.Dense(4),
            hvd.SyncBatchNormalization(),
        ]
    )

    @tf.function
    def step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(values, training=True) ** 2)
        return hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)

    for gradient in step(tf.constant(batch((12, 3), "float32")[rows()])):
        low, high = hvd.allreduce(gradient, op=hvd.Min), hvd.allreduce(gradient, op=hvd.Max)
        assert bool(tf.reduce_all(tf.equal(low, high)))


@on_ranks(2)
def test_fused_is_refused() -> None:
    for fused in (True, None):
        with pytest.raises(ValueError, match="fused"):
            hvd.SyncBatchNormalization(fused=fused)
    layer = hvd.SyncBatchNormalization(momentum=0.5)
    copy = hvd.SyncBatchNormalization.from_config(layer.get_config())
    assert copy.momentum == 0.5
