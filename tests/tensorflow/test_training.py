"""Real training: handwritten digits, learned by all ranks together, each from its own part of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from models import assert_same_on_all_ranks
from together import on_ranks


def digits() -> tuple[Any, Any, Any, Any]:
    """Return pictures and digits to learn from, and others to test with."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(1).permutation(len(data.target))
    images, labels = (data.data / 16.0).astype(np.float32)[order], data.target.astype(np.int64)[order]
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


def weights() -> list[tf.Variable]:
    """Return the weights of a small network, different on every rank until they are broadcast."""
    numbers = np.random.default_rng(hvd.rank())
    shapes = [(64, 48), (48,), (48, 10), (10,)]
    return [tf.Variable(numbers.normal(0.0, 0.15, shape).astype(np.float32)) for shape in shapes]


def scores(model: list[Any], images: Any) -> Any:
    hidden = tf.nn.relu(tf.matmul(images, model[0]) + model[1])
    return tf.matmul(hidden, model[2]) + model[3]


@on_ranks(2)
def test_digits_are_learned() -> None:
    images, labels, test_images, test_labels = digits()
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
    model = weights()
    hvd.broadcast_variables(model, root_rank=0)

    @tf.function
    def step(some_images: Any, some_labels: Any) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(some_labels, scores(model, some_images))
            loss = tf.reduce_mean(losses)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model)
        for weight, gradient in zip(model, gradients):
            weight.assign_sub(0.5 * gradient)

    numbers = np.random.default_rng(100 + hvd.rank())
    for _ in range(25):
        order = numbers.permutation(len(labels))
        for start in range(0, 736, 32):
            some = order[start : start + 32]
            step(tf.constant(images[some]), tf.constant(labels[some]))

    accuracy = np.mean(np.argmax(scores(model, test_images), axis=1) == test_labels)
    assert accuracy > 0.94, accuracy
    assert_same_on_all_ranks(model)


@on_ranks(2)
def test_two_optimizers_for_two_parts_of_a_model() -> None:
    images, labels, _, _ = digits()
    images, labels = images[hvd.rank() :: hvd.size()][:64], labels[hvd.rank() :: hvd.size()][:64]
    model = weights()
    hvd.broadcast_variables(model, root_rank=0)
    optimizers = [
        hvd.DistributedOptimizer(tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)),
        hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(0.01), name="second"),
    ]

    def loss() -> Any:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores(model, images)))

    @tf.function
    def step() -> Any:
        parts = [model[:2], model[2:]]
        pairs = [optimizer.compute_gradients(loss, part) for optimizer, part in zip(optimizers, parts)]
        for optimizer, own in zip(optimizers, pairs):
            optimizer.apply_gradients(own)
        return loss()

    losses = [float(step()) for _ in range(30)]
    assert losses[-1] < losses[0] / 3
    assert_same_on_all_ranks(model)
