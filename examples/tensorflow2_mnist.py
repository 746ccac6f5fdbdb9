"""Learn to read handwritten digits with TensorFlow 2: ``ronde run -np 2 python examples/tensorflow2_mnist.py``.

The script is what a Horovod user would write, and runs as it is under Horovod: join the job, pin a device, give each
rank its part of the data, scale the learning rate, wrap the tape, start from the same weights, save on one rank. Those
places are marked with ``# distributed``. The digits are the 1,797 images that come inside scikit-learn, so that nothing
has to be downloaded.

A batch of the whole job is ``--batch-size`` times the number of ranks. Four ranks with batches of 30 see the same
images in the same order as one rank with batches of 120, and so print the same losses but for rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd

TEST_IMAGES = 360
# The learning rate on the command line is for batches of this many images.
USUAL_BATCH = 64


class Digits(NamedTuple):
    """Images and their labels."""

    images: np.ndarray
    labels: np.ndarray


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="TensorFlow 2 digits example")
    parser.add_argument("--batch-size", type=int, default=30, help="images a step and rank")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05, help=f"learning rate for batches of {USUAL_BATCH} images")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--checkpoint-dir", help="where to save what was learnt")
    return parser.parse_args()


def pin_device(use_cuda: bool) -> None:
    """Give every rank a GPU of its own, or none."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    mine = gpus[hvd.local_rank()] if gpus and use_cuda else []  # distributed
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the ranks are what runs in parallel here


def load() -> tuple[Digits, Digits]:
    """Return the digits to learn from and those to be tested with, in an order that is the same everywhere."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (pixels[order] / 16.0).astype(np.float32).reshape(-1, 8, 8, 1), labels[order]
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


def network() -> tf.keras.Model:
    """Return two convolutions and two full layers. Dropout would make every layout draw its own numbers."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def test(model: tf.keras.Model, digits: Digits) -> tuple[float, float]:
    """Return the mean loss and the share of digits read right, over the test images of all ranks."""
    mine = slice(hvd.rank(), None, hvd.size())  # distributed
    scores = model(digits.images[mine], training=False)
    losses = tf.keras.losses.sparse_categorical_crossentropy(digits.labels[mine], scores, from_logits=True)
    right = tf.equal(tf.argmax(scores, axis=1), digits.labels[mine])
    # Sums travel, not means, so that ranks may have unequal parts.
    totals = tf.stack([tf.reduce_sum(losses), tf.reduce_sum(tf.cast(right, tf.float32))])
    loss, correct = hvd.allreduce(totals, op=hvd.Sum, name="test_totals").numpy()  # distributed
    return float(loss) / len(digits.labels), float(correct) / len(digits.labels)


def main() -> None:
    """Train on all ranks and say on rank 0 how it goes."""
    args = arguments()
    hvd.init()  # distributed
    pin_device(not args.no_cuda)
    # Every rank draws weights of its own, as happens when no care is taken; those of rank 0 count.
    tf.keras.utils.set_random_seed(args.seed + hvd.rank())

    training, testing = load()
    model = network()
    # The learning rate grows with the batch of the whole job.
    scaled_lr = args.lr * args.batch_size * hvd.size() / USUAL_BATCH  # distributed
    optimizer = tf.keras.optimizers.SGD(scaled_lr, momentum=args.momentum)
    # An optimizer makes its variables at its first step, or here, so that they can be sent as well.
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)  # distributed
    hvd.broadcast_variables(optimizer.variables, root_rank=0)  # distributed
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    @tf.function
    def training_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            scores = model(images, training=True)
            losses = tf.keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)
            loss = tf.reduce_mean(losses)
        tape = hvd.DistributedGradientTape(tape, compression=compression)  # distributed
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for epoch in range(1, args.epochs + 1):
        losses = [training_step(*batch) for batch in batches(training, args.batch_size, args.seed + epoch)]
        loss = hvd.allreduce(tf.reduce_mean(losses), name="train_loss").numpy()  # distributed
        test_loss, accuracy = test(model, testing)
        if hvd.rank() == 0:
            line = f"epoch {epoch:2}/{args.epochs}   loss {loss:.6f}   test loss {test_loss:.6f}"
            print(f"{line}   accuracy {accuracy:.2%}", flush=True)

    if args.checkpoint_dir and hvd.rank() == 0:  # distributed
        tf.train.Checkpoint(model=model, optimizer=optimizer).save(f"{args.checkpoint_dir}/digits")


if __name__ == "__main__":
    main()
