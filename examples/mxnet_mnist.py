"""Learn to read handwritten digits with MXNet's Module: ``ronde run -np 2 python examples/mxnet_mnist.py``.

The script is what a Horovod user would write, and runs as it is under Horovod: join the job, pin a device, give each
rank its part of the data, scale the learning rate, wrap the optimizer, start from the same weights. Those places are
marked with ``# distributed``. The digits are the 1,797 images that come inside scikit-learn. For Gluon see
``mxnet_gluon_mnist.py``.

A batch of the whole job is ``--batch-size`` times the number of ranks. Two ranks with batches of 32 see the same images
in the same order as one rank with batches of 64, and so learn the same but for rounding.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits

import horovod.mxnet as hvd

TEST_IMAGES = 360
# The learning rate on the command line is for batches of this many images.
USUAL_BATCH = 64


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="MXNet digits example")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step and rank")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1, help=f"learning rate for batches of {USUAL_BATCH} images")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-cuda", action="store_true", help="stay on the CPU")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0, help="divide before the sum by this")
    return parser.parse_args()


def iterators(batch_size: int) -> tuple[Any, Any]:
    """Return this rank's part of the digits to learn from, and of those to be tested with."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (pixels[order].reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)
    digits = labels[order].astype(np.float32)
    whole = batch_size * hvd.size()  # distributed
    full_batches = (len(digits) - TEST_IMAGES) // whole * whole
    mine = slice(TEST_IMAGES + hvd.rank(), TEST_IMAGES + full_batches, hvd.size())  # distributed
    tested = slice(hvd.rank(), TEST_IMAGES, hvd.size())  # distributed
    return (
        mx.io.NDArrayIter(images[mine], digits[mine], batch_size),
        mx.io.NDArrayIter(images[tested], digits[tested], batch_size),
    )


def network() -> mx.sym.Symbol:
    """Return two convolutions and two full layers, as a graph."""
    values = mx.sym.Variable("data")
    for name, filters in (("conv1", 16), ("conv2", 32)):
        values = mx.sym.Convolution(values, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=name)
        values = mx.sym.Activation(values, act_type="relu")
        values = mx.sym.Pooling(values, kernel=(2, 2), stride=(2, 2), pool_type="max")
    values = mx.sym.FullyConnected(values, num_hidden=64, name="full1")
    values = mx.sym.Activation(values, act_type="relu")
    values = mx.sym.FullyConnected(values, num_hidden=10, name="full2")
    return mx.sym.SoftmaxOutput(values, name="softmax")


def averaged(value: float, name: str) -> float:
    """Return the mean of a number over all ranks."""
    return float(hvd.allreduce(mx.nd.array([value], dtype="float64"), name=name).asscalar())  # distributed


def main() -> None:
    """Train on all ranks and say on rank 0 how it goes."""
    args = arguments()
    hvd.init()  # distributed
    logging.getLogger().setLevel(logging.WARNING)
    use_cuda = mx.context.num_gpus() > 0 and not args.no_cuda
    context = mx.gpu(hvd.local_rank()) if use_cuda else mx.cpu()  # distributed
    # Every rank draws weights of its own, as happens when no care is taken; those of rank 0 count.
    mx.random.seed(args.seed + hvd.rank())

    training, testing = iterators(args.batch_size)
    module = mx.mod.Module(network(), context=context)
    module.bind(training.provide_data, training.provide_label)
    module.init_params(mx.init.Xavier())
    weights, others = module.get_params()
    hvd.broadcast_parameters(weights, root_rank=0)  # distributed
    hvd.broadcast_parameters(others, root_rank=0)  # distributed
    module.set_params(weights, others)

    # The learning rate grows with the batch of the whole job; gradients are sums over this rank's images.
    scaled_lr = args.lr * args.batch_size * hvd.size() / USUAL_BATCH  # distributed
    optimizer = mx.optimizer.create(
        "sgd", learning_rate=scaled_lr, momentum=args.momentum, rescale_grad=1.0 / args.batch_size
    )
    optimizer = hvd.DistributedOptimizer(  # distributed
        optimizer, gradient_predivide_factor=args.gradient_predivide_factor
    )
    module.init_optimizer(kvstore=None, optimizer=optimizer)

    metric = mx.metric.CrossEntropy()
    for epoch in range(1, args.epochs + 1):
        training.reset()
        metric.reset()
        for batch in training:
            module.forward_backward(batch)
            module.update_metric(metric, batch.label)
            module.update()
        loss = averaged(metric.get()[1], "loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch:2}/{args.epochs}   loss {loss:.6f}", flush=True)

    # All ranks test equally many images, so the mean of their shares is the share of all.
    mx.nd.waitall()
    accuracy = averaged(dict(module.score(testing, "acc"))["accuracy"], "accuracy")
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
