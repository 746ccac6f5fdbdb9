"""Learn to read handwritten digits with Gluon: ``ronde run -np 2 python examples/mxnet_gluon_mnist.py``.

The script is what a Horovod user would write, and runs as it is under Horovod: join the job, pin a device, give each
rank its part of the data, scale the learning rate, start from the same weights, use the distributed trainer. Those
places are marked with ``# distributed``. The digits are the 1,797 images that come inside scikit-learn.

A batch of the whole job is ``--batch-size`` times the number of ranks. Two ranks with batches of 32 see the same images
in the same order as one rank with batches of 64, and so print the same losses but for rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

import horovod.mxnet as hvd

TEST_IMAGES = 360
# The learning rate on the command line is for batches of this many images.
USUAL_BATCH = 64


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="MXNet Gluon digits example")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step and rank")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1, help=f"learning rate for batches of {USUAL_BATCH} images")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--num-groups", type=int, default=0, help="send gradients in this many groups")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0, help="divide before the sum by this")
    return parser.parse_args()


def load() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the digits to learn from and those to be tested with."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (pixels[order].reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)
    digits = labels[order].astype(np.float32)
    return (images[TEST_IMAGES:], digits[TEST_IMAGES:]), (images[:TEST_IMAGES], digits[:TEST_IMAGES])


def batches(images: Any, digits: Any, epoch: int, args: argparse.Namespace, context: mx.Context) -> Iterator[Any]:
    """Go through the images in an order that all ranks draw alike, each taking its part of every batch."""
    order = np.random.default_rng((args.seed, epoch)).permutation(len(digits))
    whole = args.batch_size * hvd.size()  # distributed
    for first in range(0, len(order) - whole + 1, whole):
        mine = order[first : first + whole][hvd.rank() :: hvd.size()]  # distributed
        yield mx.nd.array(images[mine], ctx=context), mx.nd.array(digits[mine], ctx=context)


def network() -> Any:
    """Return two convolutions and two full layers; what they are given they learn from the first batch."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(16, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(2),
        gluon.nn.Conv2D(32, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(2),
        gluon.nn.Dense(64, activation="relu"),
        gluon.nn.Dense(10),
    )
    return net


def evaluate(net: Any, images: Any, digits: Any, context: mx.Context) -> float:
    """Return the share of digits read right, over the test images of all ranks."""
    mine = slice(hvd.rank(), None, hvd.size())  # distributed
    guesses = net(mx.nd.array(images[mine], ctx=context)).argmax(axis=1).asnumpy()
    # Counts travel, not shares, so that ranks may have unequal parts.
    counts = mx.nd.array([(guesses == digits[mine]).sum(), len(guesses)], dtype="float64")
    right, seen = hvd.allreduce(counts, op=hvd.Sum, name="counts").asnumpy()  # distributed
    return float(right / seen)


def main() -> None:
    """Train on all ranks and say on rank 0 how it goes."""
    args = arguments()
    hvd.init()  # distributed
    use_cuda = mx.context.num_gpus() > 0 and not args.no_cuda
    context = mx.gpu(hvd.local_rank()) if use_cuda else mx.cpu()  # distributed
    # Every rank draws weights of its own, as happens when no care is taken; those of rank 0 count.
    mx.random.seed(args.seed + hvd.rank())

    training, testing = load()
    net = network()
    net.initialize(mx.init.Xavier(), ctx=context)
    net.hybridize()
    # The shapes are not known yet: the weights are broadcast as soon as they are.
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)  # distributed
    # The learning rate grows with the batch of the whole job.
    scaled_lr = args.lr * args.batch_size * hvd.size() / USUAL_BATCH  # distributed
    trainer = hvd.DistributedTrainer(  # distributed
        net.collect_params(),
        "sgd",
        {"learning_rate": scaled_lr, "momentum": args.momentum},
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        gradient_predivide_factor=args.gradient_predivide_factor,
        num_groups=args.num_groups,
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    for epoch in range(1, args.epochs + 1):
        losses = []
        for images, digits in batches(*training, epoch, args, context):
            with autograd.record():
                loss = loss_of(net(images), digits)
            loss.backward()
            trainer.step(args.batch_size)
            losses.append(loss.mean())
        mean = hvd.allreduce(mx.nd.stack(*losses).mean(), name="loss").asscalar()  # distributed
        accuracy = evaluate(net, *testing, context)
        if hvd.rank() == 0:
            print(f"epoch {epoch:2}/{args.epochs}   loss {mean:.6f}   accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
