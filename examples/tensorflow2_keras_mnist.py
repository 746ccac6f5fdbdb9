"""Learn to read handwritten digits with tf.keras: ``ronde run -np 2 python examples/tensorflow2_keras_mnist.py``.

The script is what a Horovod user would write, and runs as it is under Horovod: join the job, pin a device, scale the
learning rate, wrap the optimizer, give ``fit`` the callbacks, save on one rank. Those places are marked with
``# distributed``. The digits are the 1,797 images that come inside scikit-learn, so that nothing has to be downloaded;
``--mnist`` takes the 70,000 of MNIST instead, which Keras downloads.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import horovod.tensorflow.keras as hvd

TEST_IMAGES = 360


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="tf.keras digits example")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step and rank")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate for one rank")
    parser.add_argument("--warmup-epochs", type=int, default=3)
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    parser.add_argument("--mnist", action="store_true", help="download MNIST and learn from that")
    parser.add_argument("--checkpoint", help="a .keras file to save the model to")
    return parser.parse_args()


def pin_device(use_cuda: bool) -> None:
    """Give every rank a GPU of its own, or none."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    mine = gpus[hvd.local_rank()] if gpus and use_cuda else []  # distributed
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the ranks are what runs in parallel here


def load(mnist: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels; the last ones are to be tested with."""
    if mnist:
        # Every rank has a file of its own, so that they do not write to the same.
        (images, labels), (more, their_labels) = tf.keras.datasets.mnist.load_data(path=f"mnist-{hvd.rank()}.npz")
        images, labels, white = np.concatenate([images, more]), np.concatenate([labels, their_labels]), 255.0
    else:
        images, labels, white = *load_digits(return_X_y=True), 16.0
        images = images.reshape(-1, 8, 8)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order, ..., None] / white).astype("float32"), labels[order].astype("int64")


def network(shape: tuple[int, ...]) -> tf.keras.Model:
    """Return two convolutions and two full layers."""
    return tf.keras.Sequential(
        [
            tf.keras.Input(shape),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Dropout(0.25),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    """Train on all ranks and say on rank 0 how it goes."""
    args = arguments()
    hvd.init()  # distributed
    pin_device(not args.no_cuda)
    tf.keras.utils.set_random_seed(hvd.rank())  # every rank draws numbers of its own

    images, labels = load(args.mnist)
    training = (
        tf.data.Dataset.from_tensor_slices((images[:-TEST_IMAGES], labels[:-TEST_IMAGES]))
        .shard(hvd.size(), hvd.rank())  # distributed
        .repeat()
        .shuffle(10_000)
        .batch(args.batch_size)
    )
    model = network(images.shape[1:])
    scaled_lr = args.lr * hvd.size()  # distributed
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(scaled_lr))  # distributed
    model.compile(optimizer, loss=tf.keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])

    callbacks = [
        # The ranks have to start from the same weights: those that rank 0 has after the first batch.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # distributed
        # Metrics of all ranks, before anything that looks at them.
        hvd.callbacks.MetricAverageCallback(),  # distributed
        # A large learning rate is too much for weights that have just been drawn.
        hvd.callbacks.LearningRateWarmupCallback(scaled_lr, warmup_epochs=args.warmup_epochs),  # distributed
    ]
    if args.checkpoint and hvd.rank() == 0:  # distributed
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(args.checkpoint))

    model.fit(
        training,
        steps_per_epoch=(len(labels) - TEST_IMAGES) // args.batch_size // hvd.size(),  # distributed
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,  # distributed
    )

    mine = slice(hvd.rank(), None, hvd.size())  # distributed
    loss, accuracy = model.evaluate(images[-TEST_IMAGES:][mine], labels[-TEST_IMAGES:][mine], verbose=0)
    loss, accuracy = hvd.allreduce([loss, accuracy], name="test")  # distributed
    if hvd.rank() == 0:
        print(f"test loss {loss:.6f}   accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
