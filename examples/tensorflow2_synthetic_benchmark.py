"""Measure images a second over all ranks: ``ronde run -np 2 python examples/tensorflow2_synthetic_benchmark.py``.

Takes the flags and prints the lines of the script of that name that Horovod ships, so figures can be compared. The
network is one of ``tf.keras.applications``, with weights of its own; the images are noise: only the speed matters.

Ranks learn from different images, so they end with the same weights only if they learnt together, which is checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import tensorflow as tf

import horovod.tensorflow as hvd

CLASSES = 1000


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="TensorFlow 2 synthetic benchmark")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--model", default="ResNet50", help="a network of tf.keras.applications")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step and rank")
    parser.add_argument("--image-size", type=int, default=224, help="pixels on each side")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps for each printed figure")
    parser.add_argument("--num-iters", type=int, default=10, help="printed figures")
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def pin_device(use_cuda: bool) -> str:
    """Give every rank a GPU of its own, or none, and return what kind of device it has."""
    gpus = tf.config.list_physical_devices("GPU") if use_cuda else []
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(gpus[hvd.local_rank()] if gpus else [], "GPU")  # distributed
    if not gpus:
        tf.config.threading.set_intra_op_parallelism_threads(1)  # the ranks are what runs in parallel here
    return "GPU" if gpus else "CPU"


def say(line: str) -> None:
    """Print once for the whole job."""
    if hvd.rank() == 0:
        print(line, flush=True)


def same_everywhere(model: tf.keras.Model) -> bool:
    """Tell whether all ranks have the same trained weights."""
    total = tf.add_n([tf.reduce_sum(tf.cast(variable, tf.float64)) for variable in model.trainable_variables])
    totals = hvd.allgather(tf.reshape(total, [1]), name="totals")  # distributed
    return bool(tf.reduce_all(tf.equal(totals, totals[0])).numpy())


def main() -> int:
    """Time the steps of all ranks and print images a second, for a rank and in total."""
    args = arguments()
    hvd.init()  # distributed
    kind = pin_device(not args.no_cuda)
    # Ranks draw weights and images of their own; of the weights those of rank 0 count.
    tf.keras.utils.set_random_seed(args.seed + hvd.rank())

    shape = (args.image_size, args.image_size, 3)
    model = getattr(tf.keras.applications, args.model)(weights=None, input_shape=shape, classes=CLASSES)
    optimizer = tf.keras.optimizers.SGD(args.lr)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)  # distributed
    hvd.broadcast_variables(optimizer.variables, root_rank=0)  # distributed
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    images = tf.random.uniform((args.batch_size, *shape))
    labels = tf.random.uniform((args.batch_size,), maxval=CLASSES, dtype=tf.int64)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            probabilities = model(images, training=True)
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, probabilities))
        tape = hvd.DistributedGradientTape(tape, compression=compression)  # distributed
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    say(f"Model: {args.model}\nBatch size: {args.batch_size}\nNumber of {kind}s: {hvd.size()}\nRunning warmup...")
    for _ in range(args.num_warmup_batches):
        step()
    say("Running benchmark...")
    speeds = []
    for number in range(args.num_iters):
        started = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            loss = step()
        loss.numpy()  # a GPU may still be at it
        speeds.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - started))
        say(f"Iter #{number}: {speeds[-1]:.1f} img/sec per {kind}")

    # 1.96 standard deviations either way hold 95 of 100 figures.
    mean, spread = statistics.mean(speeds), 1.96 * statistics.pstdev(speeds)
    say(f"Img/sec per {kind}: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} {kind}(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")
    same = same_everywhere(model)
    say(f"Weights: {'the same on all ranks' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
