"""Learn to read handwritten digits with Keras: ``ronde run -np 2 python examples/keras_digits.py``.

It runs with Keras 2 and 3, and with Keras 3 on TensorFlow, PyTorch or JAX: ``KERAS_BACKEND=torch ronde run …``. It has
what a long training needs: warm-up, a learning rate that decays, checkpoints written by one rank, and going on from the
last of them. The places that make it a training of many ranks are marked with ``# distributed``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import horovod.keras as hvd

TEST_IMAGES = 360


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Keras digits example")
    parser.add_argument("--batch-size", type=int, default=30, help="images a step and rank")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate for one rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--warmup-epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--checkpoint-dir", type=Path, help="where to save the model of each epoch, and to go on from")
    return parser.parse_args()


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels; the last ones are to be tested with."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16.0).astype("float32"), labels[order].astype("int64")


def network() -> keras.Model:
    """Return a network of two layers."""
    return keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    )


def last_epoch(folder: Path | None) -> int:
    """Return the epoch after which the last checkpoint was written; rank 0 knows, whose disk it is on."""
    found = [int(path.stem.rpartition("-")[2]) for path in folder.glob("digits-*.keras")] if folder else []
    return int(hvd.broadcast(max(found, default=0), root_rank=0, name="last_epoch"))  # distributed


def main() -> None:
    """Train on all ranks and say on rank 0 how it goes."""
    args = arguments()
    hvd.init()  # distributed
    # Every rank draws weights of its own, as happens when no care is taken; those of rank 0 count.
    keras.utils.set_random_seed(args.seed + hvd.rank())

    done = last_epoch(args.checkpoint_dir)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    scaled_lr = args.lr * hvd.size()  # distributed
    if done and hvd.rank() == 0:
        # The optimizer comes back as a distributed one; the other ranks get all of it after the first batch.
        model = hvd.load_model(str(args.checkpoint_dir / f"digits-{done}.keras"), compression=compression)
    else:
        model = network()
        optimizer = keras.optimizers.SGD(scaled_lr, momentum=args.momentum)
        optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)  # distributed
        model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])

    images, labels = load()
    mine = slice(hvd.rank(), -TEST_IMAGES, hvd.size())  # distributed
    # Ranks may have an image more or less; all of them have to make the same number of steps.
    whole = (len(labels) - TEST_IMAGES) // hvd.size() // args.batch_size * args.batch_size  # distributed

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # distributed
        hvd.callbacks.MetricAverageCallback(),  # distributed
        hvd.callbacks.LearningRateWarmupCallback(scaled_lr, warmup_epochs=args.warmup_epochs),  # distributed
        hvd.callbacks.LearningRateScheduleCallback(scaled_lr, multiplier=0.9, start_epoch=args.warmup_epochs),
    ]
    for epoch in range(done, args.epochs):
        history = model.fit(
            images[mine][:whole],
            labels[mine][:whole],
            batch_size=args.batch_size,
            initial_epoch=epoch,
            epochs=epoch + 1,
            callbacks=callbacks,
            verbose=0,
        ).history
        if hvd.rank() == 0:
            rate, loss, right = history["lr"][0], history["loss"][0], history["accuracy"][0]
            line = f"epoch {epoch + 1:2}/{args.epochs}   loss {loss:.6f}   learned {right:.2%}   rate {rate:.4f}"
            print(line, flush=True)
            if args.checkpoint_dir:
                args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
                model.save(str(args.checkpoint_dir / f"digits-{epoch + 1}.keras"))

    part = slice(len(labels) - TEST_IMAGES + hvd.rank(), None, hvd.size())  # distributed
    loss, accuracy = model.evaluate(images[part], labels[part], verbose=0)
    loss, accuracy = hvd.allreduce([loss, accuracy], name="test")  # distributed
    if hvd.rank() == 0:
        print(f"test loss {loss:.6f}   accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
