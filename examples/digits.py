"""Learn to read handwritten digits, data-parallel: ``ronde run -np 2 python examples/digits.py``.

The digits are the 1,797 images of 8 by 8 pixels that come inside scikit-learn; the network has two hidden layers and
is written out in NumPy, so that nothing stands between the reader and the four lines that make it distributed. They
are marked with ``# distributed``: join the job, take this rank's part of every batch, average the gradients, and start
from the same weights.

At the end rank 0 trains once more by itself with whole batches. The order of additions differs, so the weights do in
their last digits; the accuracy must not, and the script fails if it does.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

import ronde

EPOCHS = 12
BATCH = 120
LEARNING_RATE = 0.1
MOMENTUM = 0.9
LAYERS = (64, 128, 64, 10)
TEST_IMAGES = 360

Weights = list[np.ndarray]


class Digits(NamedTuple):
    """Images and their labels."""

    images: np.ndarray
    labels: np.ndarray


def load() -> tuple[Digits, Digits]:
    """Return the digits to learn from and those to be tested with, in an order that is the same everywhere."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order] / 16.0, labels[order]
    return (
        Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:]),
        Digits(images[:TEST_IMAGES], labels[:TEST_IMAGES]),
    )


def new_network(seed: int) -> Weights:
    """Return the weights and biases of each layer, one after the other."""
    random = np.random.default_rng(seed)
    weights: Weights = []
    for inputs, outputs in zip(LAYERS, LAYERS[1:]):
        weights += [random.normal(0.0, np.sqrt(2.0 / inputs), (inputs, outputs)), np.zeros(outputs)]
    return weights


def forward(weights: Weights, images: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return what each layer is given, and the probabilities of the ten digits."""
    values = [images]
    for matrix, bias in zip(weights[0:-2:2], weights[1:-2:2]):
        values.append(np.maximum(values[-1] @ matrix + bias, 0.0))
    scores = values[-1] @ weights[-2] + weights[-1]
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return values, exponentials / exponentials.sum(axis=1, keepdims=True)


def gradients(weights: Weights, batch: Digits) -> tuple[Weights, float]:
    """Return the mean gradient over a batch, and the mean loss."""
    values, probabilities = forward(weights, batch.images)
    rows = np.arange(len(batch.labels))
    loss = -np.log(probabilities[rows, batch.labels] + 1e-12).mean()
    error = probabilities
    error[rows, batch.labels] -= 1.0
    error /= len(batch.labels)
    result: Weights = []
    for layer in reversed(range(len(values))):
        result = [values[layer].T @ error, error.sum(axis=0), *result]
        error = (error @ weights[2 * layer].T) * (values[layer] > 0.0)
    return result, float(loss)


def accuracy(weights: Weights, digits: Digits) -> float:
    """Return the share of digits that the network reads right."""
    _, probabilities = forward(weights, digits.images)
    return float((probabilities.argmax(axis=1) == digits.labels).mean())


class Trainer:
    """Stochastic gradient descent with momentum, over the ranks of the job or alone."""

    def __init__(self, weights: Weights, alone: bool) -> None:
        self.weights = weights
        self.momentum = [np.zeros_like(weight) for weight in weights]
        self.alone = alone

    def epoch(self, training: Digits, number: int) -> tuple[float, int]:
        """Go once through the training images and return the mean loss and how many images that was."""
        order = np.random.default_rng(number).permutation(len(training.labels))
        losses = []
        images = 0
        for first in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[first : first + BATCH]
            if not self.alone:
                chosen = chosen[ronde.rank() :: ronde.size()]  # distributed
            gradient, loss = gradients(self.weights, Digits(training.images[chosen], training.labels[chosen]))
            if not self.alone:
                gradient = [ronde.allreduce_(part, op=ronde.Average) for part in gradient]  # distributed
            self._step(gradient)
            losses.append(loss)
            images += len(chosen)
        return float(np.mean(losses)), images

    def _step(self, gradient: Weights) -> None:
        for weight, momentum, change in zip(self.weights, self.momentum, gradient):
            momentum *= MOMENTUM
            momentum -= LEARNING_RATE * change
            weight += momentum


def main() -> int:
    """Train over all ranks, then on rank 0 alone, and compare."""
    ronde.init()  # distributed
    if BATCH % ronde.size():
        print(f"a batch of {BATCH} cannot be shared evenly by {ronde.size()} ranks", file=sys.stderr)
        return 2
    threadpool_limits(limits=1)  # a core a rank: the ranks are what runs in parallel here
    training, test = load()
    share = BATCH // ronde.size()
    say(f"{len(training.labels)} digits to learn from, {len(test.labels)} to test with; {share} a batch and rank")

    # Every rank draws weights of its own, as happens when no care is taken; those of rank 0 count.
    weights = [ronde.broadcast(part, root_rank=0) for part in new_network(seed=ronde.rank())]  # distributed
    start = [part.copy() for part in weights]
    trainer = Trainer(weights, alone=False)
    for number in range(1, EPOCHS + 1):
        started = time.perf_counter()
        loss, images = trainer.epoch(training, number)
        speed = images / (time.perf_counter() - started)
        report(number, loss, accuracy(weights, test), speed)

    # Nobody leaves before the last report; what follows is no longer distributed.
    ronde.barrier()
    return compare(start, accuracy(weights, test), training, test) if ronde.rank() == 0 else 0


def report(number: int, loss: float, correct: float, speed: float) -> None:
    """Print a line about an epoch: the mean loss of all ranks, the accuracy, and the speed of each rank."""
    loss = float(ronde.allreduce(np.array(loss)))
    speeds = " + ".join(f"{each:,.0f}" for each in ronde.allgather(np.array([speed])))
    say(f"epoch {number:2}/{EPOCHS}   loss {loss:.4f}   accuracy {correct:6.2%}   {speeds} images/s")


def compare(weights: Weights, together: float, training: Digits, test: Digits) -> int:
    """Train the same network in this process alone, and return the exit status: 0 if it reads as well."""
    trainer = Trainer(weights, alone=True)
    for number in range(1, EPOCHS + 1):
        trainer.epoch(training, number)
    alone = accuracy(weights, test)
    verdict = "the same" if alone == together else "DIFFERENT"
    ranks = "1 rank" if ronde.size() == 1 else f"{ronde.size()} ranks"
    say(f"accuracy on {ranks} {together:.2%}, in one process {alone:.2%}: {verdict}")
    return 0 if alone == together else 1


def say(line: str) -> None:
    """Print once for the whole job."""
    if ronde.rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
