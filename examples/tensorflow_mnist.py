"""Learn to read handwritten digits with a TensorFlow 1 graph: ``ronde run -np 2 python examples/tensorflow_mnist.py``.

For those who still have such scripts, which TensorFlow 2 runs through ``tf.compat.v1``: a graph, an optimizer of
``tf.compat.v1.train`` that is wrapped, a monitored session with a hook that sends rank 0's weights to the others, and
checkpoints on rank 0. What makes it distributed is marked with ``# distributed``. The digits are the 1,797 images that
come inside scikit-learn.

A batch of the whole job is ``--batch-size`` times the number of ranks. Four ranks with batches of 30 see the same
images in the same order as one rank with batches of 120, and so print the same losses but for rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd

TEST_IMAGES = 360
LAYERS = (64, 128, 64, 10)
# The learning rate on the command line is for batches of this many images.
USUAL_BATCH = 64


class Digits(NamedTuple):
    """Images and their labels."""

    images: np.ndarray
    labels: np.ndarray


class Graph(NamedTuple):
    """What is fed into the graph and asked of it."""

    images: tf.Tensor
    labels: tf.Tensor
    loss: tf.Tensor
    train: tf.Operation
    own_loss: tf.Tensor
    mean_loss: tf.Tensor
    test_totals: tf.Tensor


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="TensorFlow 1 digits example")
    parser.add_argument("--batch-size", type=int, default=30, help="images a step and rank")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05, help=f"learning rate for batches of {USUAL_BATCH} images")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0, help="divide before the sum by this")
    parser.add_argument("--checkpoint-dir", help="where to save what was learnt")
    return parser.parse_args()


def load() -> tuple[Digits, Digits]:
    """Return the digits to learn from and those to be tested with, in an order that is the same everywhere."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (pixels[order] / 16.0).astype(np.float32), labels[order]
    return (
        Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:]),
        Digits(images[:TEST_IMAGES], labels[:TEST_IMAGES]),
    )


def batches(digits: Digits, batch_size: int, seed: int) -> Iterator[Digits]:
    """Return this rank's part of the batches of an epoch."""
    together = batch_size * hvd.size()  # distributed
    order = np.random.default_rng(seed).permutation(len(digits.labels))
    for first in range(0, len(order) - together + 1, together):
        mine = order[first : first + together][hvd.rank() :: hvd.size()]  # distributed
        yield Digits(digits.images[mine], digits.labels[mine])


def scores_of(images: tf.Tensor) -> tf.Tensor:
    """Return what three full layers make of the images."""
    values = images
    for number, (inputs, outputs) in enumerate(zip(LAYERS, LAYERS[1:])):
        with tf.variable_scope(f"layer{number}"):
            weights = tf.get_variable("weights", (inputs, outputs), initializer=tf.initializers.he_normal())
            biases = tf.get_variable("biases", (outputs,), initializer=tf.initializers.zeros())
            values = tf.matmul(values, weights) + biases
        if number < len(LAYERS) - 2:
            values = tf.nn.relu(values)
    return values


def build(args: argparse.Namespace) -> Graph:
    """Make the graph, in which the averages over all ranks are operations like others."""
    images = tf.placeholder(tf.float32, (None, LAYERS[0]), name="images")
    labels = tf.placeholder(tf.int64, (None,), name="labels")
    scores = scores_of(images)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    loss = tf.reduce_mean(losses)
    right = tf.cast(tf.equal(tf.argmax(scores, 1), labels), tf.float32)

    # The learning rate grows with the batch of the whole job; Adasum finds the right length of steps by itself.
    ranks_in_scale = 1 if args.use_adasum else hvd.size()  # distributed
    scaled_lr = args.lr * args.batch_size * ranks_in_scale / USUAL_BATCH
    optimizer = tf.train.MomentumOptimizer(scaled_lr, args.momentum)
    optimizer = hvd.DistributedOptimizer(  # distributed
        optimizer,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    train = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())

    own_loss = tf.placeholder(tf.float32, (), name="own_loss")
    mean_loss = hvd.allreduce(own_loss, name="train_loss")  # distributed
    # Sums travel, not means, so that ranks may have unequal parts.
    totals = tf.stack([tf.reduce_sum(losses), tf.reduce_sum(right)])
    test_totals = hvd.allreduce(totals, op=hvd.Sum, name="test_totals")  # distributed
    return Graph(images, labels, loss, train, own_loss, mean_loss, test_totals)


def session_config(use_cuda: bool) -> tf.ConfigProto:
    """Give every rank a GPU of its own, or none."""
    config = tf.ConfigProto(intra_op_parallelism_threads=1)  # the ranks are what runs in parallel here
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())  # distributed
    if not use_cuda:
        config.device_count["GPU"] = 0
    return config


def main() -> None:
    """Train on all ranks and say on rank 0 how it goes."""
    args = arguments()
    tf.disable_eager_execution()
    hvd.init()  # distributed
    # Every rank draws weights of its own, as happens when no care is taken; those of rank 0 count.
    tf.set_random_seed(args.seed + hvd.rank())
    training, testing = load()
    graph = build(args)
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]  # distributed
    # Ranks that write to one place would spoil each other's checkpoints.
    checkpoint_dir = args.checkpoint_dir if hvd.rank() == 0 else None  # distributed

    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=checkpoint_dir, hooks=hooks, config=session_config(not args.no_cuda)
    ) as session:
        for epoch in range(1, args.epochs + 1):
            losses = []
            for batch in batches(training, args.batch_size, args.seed + epoch):
                feed = {graph.images: batch.images, graph.labels: batch.labels}
                losses.append(session.run([graph.loss, graph.train], feed)[0])
            loss = session.run(graph.mean_loss, {graph.own_loss: np.mean(losses)})
            mine = slice(hvd.rank(), None, hvd.size())  # distributed
            feed = {graph.images: testing.images[mine], graph.labels: testing.labels[mine]}
            test_loss, right = session.run(graph.test_totals, feed) / len(testing.labels)
            if hvd.rank() == 0:
                line = f"epoch {epoch:2}/{args.epochs}   loss {loss:.6f}   test loss {test_loss:.6f}"
                print(f"{line}   accuracy {right:.2%}", flush=True)


if __name__ == "__main__":
    main()
