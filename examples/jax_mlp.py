"""Learn to read handwritten digits with JAX and optax: ``ronde run -np 2 python examples/jax_mlp.py``.

The script is that of one process with six places more, marked with ``# distributed``: join the job, take this rank's
part of every batch, scale the learning rate, start from the same weights, wrap the optimizer, and average what is
reported. The exchange of gradients is part of the compiled training step. The digits are the 1,797 images that come
inside scikit-learn.

A batch of the whole job is ``--batch-size`` times the number of ranks. Four ranks with batches of 30 see the same
images in the same order as one rank with batches of 120, and so print the same losses but for rounding.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import ronde.jax as hvd

TEST_IMAGES = 360
LAYERS = (64, 128, 64, 10)
# The learning rate on the command line is for batches of this many images.
USUAL_BATCH = 64


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="JAX digits example")
    parser.add_argument("--batch-size", type=int, default=30, help="images a step and rank")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05, help=f"learning rate for batches of {USUAL_BATCH} images")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--bf16-allreduce", action="store_true", help="send gradients as bfloat16")
    return parser.parse_args()


def load() -> tuple[Any, Any]:
    """Return the digits to learn from and those to be tested with, as images and labels."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (pixels[order] / 16.0).astype(np.float32), labels[order].astype(np.int32)
    return (images[TEST_IMAGES:], labels[TEST_IMAGES:]), (images[:TEST_IMAGES], labels[:TEST_IMAGES])


def new_network(key: Any) -> list[dict[str, Any]]:
    """Return the weights and biases of each layer."""
    network = []
    for inputs, outputs in zip(LAYERS, LAYERS[1:]):
        key, drawn = jax.random.split(key)
        weights = jax.random.normal(drawn, (inputs, outputs)) * jnp.sqrt(2.0 / inputs)
        network.append({"weights": weights, "bias": jnp.zeros(outputs)})
    return network


def scores(network: list[dict[str, Any]], images: Any) -> Any:
    """Return a score for each digit and image."""
    values = images
    for layer in network[:-1]:
        values = jax.nn.relu(values @ layer["weights"] + layer["bias"])
    return values @ network[-1]["weights"] + network[-1]["bias"]


def loss_of(network: list[dict[str, Any]], images: Any, labels: Any) -> Any:
    """Return the mean loss over a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(scores(network, images), labels).mean()


def main() -> None:
    """Train, and report after every epoch."""
    args = arguments()
    hvd.init()  # distributed
    (images, labels), (test_images, test_labels) = load()

    # The learning rate grows with the batch of the whole job.
    rate = args.lr * args.batch_size * hvd.size() / USUAL_BATCH  # distributed
    optimizer = hvd.DistributedOptimizer(  # distributed
        optax.sgd(rate, momentum=args.momentum),
        compression=hvd.Compression.bf16 if args.bf16_allreduce else hvd.Compression.none,
    )
    # Every rank draws weights of its own, as happens when no care is taken; those of rank 0 count.
    network = new_network(jax.random.key(hvd.rank()))
    network = hvd.broadcast_parameters(network, root_rank=0)  # distributed
    state = optimizer.init(network)

    @jax.jit
    def step(network: Any, state: Any, images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(network, images, labels)
        updates, state = optimizer.update(gradients, state, network)
        return optax.apply_updates(network, updates), state, loss

    @jax.jit
    def test(network: Any, images: Any, labels: Any) -> Any:
        right = (scores(network, images).argmax(1) == labels).mean()
        return hvd.grouped_allreduce((loss_of(network, images, labels), right))  # distributed

    # As many test images on every rank, so that the mean of the means is that of all.
    own_test = np.arange(TEST_IMAGES // hvd.size() * hvd.size()).reshape(-1, hvd.size())[:, hvd.rank()]  # distributed
    batch = args.batch_size * hvd.size()
    for epoch in range(1, args.epochs + 1):
        order = np.random.default_rng(epoch).permutation(len(labels))
        losses = []
        for first in range(0, len(order) - batch + 1, batch):
            chosen = order[first : first + batch][hvd.rank() :: hvd.size()]  # distributed
            network, state, loss = step(network, state, images[chosen], labels[chosen])
            losses.append(loss)
        loss = hvd.allreduce(jnp.stack(losses).mean())  # distributed
        test_loss, accuracy = test(network, test_images[own_test], test_labels[own_test])
        if hvd.rank() == 0:
            line = f"epoch {epoch:2}/{args.epochs}   loss {loss:.6f}   test loss {test_loss:.6f}"
            print(f"{line}   accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
