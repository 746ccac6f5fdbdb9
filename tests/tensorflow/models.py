"""Small trainings whose result with several ranks must be that of one process with the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

STEPS = 4
ROWS = 12
# Exact in every type.
RATE = 0.25


def network() -> list[tf.Variable]:
    """Return the weights of the same small network on every rank: an embedding and two layers."""
    numbers = np.random.default_rng(7)
    shapes = {"table": (10, 4), "hidden": (4, 8), "bias": (8,), "output": (8, 3)}
    return [tf.Variable(numbers.normal(size=shape), name=name) for name, shape in shapes.items()]


def batches(steps: int = STEPS) -> list[tuple[Any, Any]]:
    """Return the whole batches, the same ones on every rank: words and classes."""
    numbers = np.random.default_rng(11)
    return [(numbers.integers(0, 10, [ROWS, 2]), numbers.integers(0, 3, [ROWS])) for _ in range(steps)]


def own_part(batch: Any, rank: int | None = None, size: int | None = None) -> Any:
    """Return a rank's share of a batch."""
    return np.split(batch, size or hvd.size())[hvd.rank() if rank is None else rank]


def loss_of(weights: list[Any], words: Any, classes: Any) -> Any:
    table, hidden, bias, output = weights
    # Gathering rows makes the gradient of the table one of tf.IndexedSlices.
    meaning = tf.reduce_mean(tf.gather(table, words), axis=1)
    scores = tf.matmul(tf.tanh(tf.matmul(meaning, hidden) + bias), output)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(classes, scores))


def descend(weights: list[tf.Variable], gradients: list[Any], rate: float = RATE) -> None:
    """Take a step of plain gradient descent."""
    for weight, gradient in zip(weights, gradients):
        if gradient is not None:
            weight.assign_sub(rate * tf.convert_to_tensor(gradient))


def train_alone(steps: int = STEPS, rate: float = RATE) -> list[tf.Variable]:
    """Train with plain TensorFlow on whole batches."""
    weights = network()
    for words, classes in batches(steps):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, words, classes)
        descend(weights, tape.gradient(loss, weights), rate)
    return weights


def train_together(
    in_graph: bool = False, rate: float = RATE, wrap: Callable[..., Any] | None = None, **options: Any
) -> list[tf.Variable]:
    """Train with all ranks, each on its part of the batches."""
    weights = network()
    if callable(options.get("groups")):
        options["groups"] = options["groups"](weights)

    def step(words: Any, classes: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(weights, words, classes)
        tape = (wrap or hvd.DistributedGradientTape)(tape, **options)
        descend(weights, tape.gradient(loss, weights), rate)

    run = tf.function(step) if in_graph else step
    for words, classes in batches():
        run(tf.constant(own_part(words)), tf.constant(own_part(classes)))
    return weights


def assert_same(weights: list[Any], others: list[Any], tolerance: float = 1e-10) -> None:
    """Fail unless two networks have the same weights."""
    assert len(weights) == len(others) > 0
    for weight, other in zip(weights, others):
        np.testing.assert_allclose(np.asarray(weight), np.asarray(other), rtol=tolerance, atol=tolerance)


def assert_same_on_all_ranks(weights: list[tf.Variable]) -> None:
    """Fail unless all ranks have the same bits."""
    for weight in weights:
        low, high = hvd.allreduce(weight, op=hvd.Min), hvd.allreduce(weight, op=hvd.Max)
        assert bool(tf.reduce_all(tf.equal(low, high))), weight.name
