"""The works of the training benchmark, and how they are timed, whatever library exchanges the gradients.

A work is a call with a clock around it, what has to be done before, and a look at the result. Calls go on until the
budget is spent; each rank prints one JSON line for each work, in the form that `peers.timed` prints. The library under
test is given by the program that calls `main`: `training.hvd`, `training.gloo` or `training.alone`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from models import Transformer, resnet

SMALL_TENSORS = 1000
SMALL_FLOATS = 256
FEWEST_CALLS = 5
WARM_UP_BATCHES = 2
SLOW_RANK = 1
SLEEP_SECONDS = 5.0


class Library(Protocol):
    """What exchanges gradients, as seen from one rank."""

    rank: int
    ranks: int

    def barrier(self) -> None:
        """Wait for all ranks."""

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""

    def allreduce(self, tensor: Tensor) -> None:
        """Average one tensor over all ranks, in place."""

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """Average the gradients of a network in place, as this library does it best, in the order given."""

    def exchange_each(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors in place, each by a call of its own, all under way at once."""

    def distribute(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model and the optimizer to train with, so that ranks train together."""


@dataclass(frozen=True)
class Work:
    """Something to be timed. `batch` calls follow each other before the result of the last is looked at."""

    bytes: int
    before: Callable[[], object]
    call: Callable[[], object]
    is_right: Callable[[], bool]
    batch: int
    # Whether ranks meet before each call, so that none is charged with another's delay.
    meet: bool


class WrongResultError(Exception):
    """The library under test computed something else than the average."""


def gradients(library: Library) -> Work:
    """Exchange the gradients of ResNet-50, in the order in which the backward pass makes them."""
    tensors = [torch.empty_like(parameter) for parameter in resnet(50).parameters()][::-1]
    return _averages(library, tensors, lambda: library.exchange(tensors))


def small(library: Library) -> Work:
    """Exchange a thousand tensors of 1 KiB."""
    tensors = [torch.empty(SMALL_FLOATS) for _ in range(SMALL_TENSORS)]
    return _averages(library, tensors, lambda: library.exchange_each(tensors))


def named(library: Library) -> Work:
    """Average a single number and wait for it; these calls keep ranks in step by themselves."""
    tensor = torch.empty(1)
    return _averages(library, [tensor], lambda: library.allreduce(tensor), batch=100, meet=False)


def _averages(
    library: Library, tensors: Sequence[Tensor], call: Callable[[], object], batch: int = 1, meet: bool = True
) -> Work:
    """Fill each tensor with a number of this rank and expect the mean of all ranks' numbers."""

    def fill() -> None:
        for index, tensor in enumerate(tensors):
            tensor.fill_((library.rank + 1) * (index % 7 + 1))

    def is_right() -> bool:
        for index, tensor in enumerate(tensors):
            mean = (library.ranks + 1) / 2 * (index % 7 + 1)
            lowest, highest = (value.item() for value in torch.aminmax(tensor))
            if not (math.isclose(lowest, mean, rel_tol=1e-6) and math.isclose(highest, mean, rel_tol=1e-6)):
                return False
        return True

    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return Work(size, fill, call, is_right, batch, meet)


def resnet_step(library: Library) -> Work:
    """Train ResNet-50 on small images: the gradients are as large as for large ones, the rest takes less time."""
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(1000, (8,))
    return _step(library, resnet(50), lambda model: functional.cross_entropy(model(images), labels))


def transformer_step(library: Library) -> Work:
    """Train a transformer of six layers."""
    text, following = torch.randint(256, (2, 64)), torch.randint(256, (2 * 64,))
    model = Transformer(symbols=256, context=64, width=512, layers=6, heads=8)
    return _step(library, model, lambda model: functional.cross_entropy(model(text).flatten(0, 1), following))


def _step(library: Library, model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> Work:
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    model, optimizer = library.distribute(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    def is_right() -> bool:
        """Ranks learn from different data, so they only agree if they exchanged what they learnt."""
        total = math.fsum(parameter.detach().sum(dtype=torch.float64).item() for parameter in model.parameters())
        return math.isfinite(total) and library.maximum(total) == total

    return Work(size, lambda: None, step, is_right, batch=2, meet=False)


def measure(library: Library, work: Work, budget: float) -> dict[str, object]:
    """Time a work for about `budget` seconds of calls."""
    seconds: list[float] = []
    for _ in range(WARM_UP_BATCHES):
        _batch(library, work, [])
    spent = 0.0
    while len(seconds) < FEWEST_CALLS or spent < budget:
        spent += library.maximum(_batch(library, work, seconds))
    return {"bytes": work.bytes, "calls": len(seconds), **_times(seconds)}


def _batch(library: Library, work: Work, seconds: list[float]) -> float:
    """Make the calls of a batch, note the time of each and return that of all."""
    clock = time.perf_counter
    total = 0.0
    for _ in range(work.batch):
        work.before()
        if work.meet:
            library.barrier()
        start = clock()
        work.call()
        spent = clock() - start
        seconds.append(spent)
        total += spent
    if not work.is_right():
        raise WrongResultError(f"rank {library.rank}: the result over {library.ranks} ranks is wrong")
    return total


def waiting(library: Library, _budget: float) -> dict[str, object]:
    """Let one rank come late and count the processor time of the others meanwhile, and of the one that sleeps."""
    tensor = torch.zeros(1)
    library.allreduce(tensor)
    library.barrier()
    started, used = time.perf_counter(), time.process_time()
    if library.rank == SLOW_RANK:
        time.sleep(SLEEP_SECONDS)
    library.allreduce(tensor)
    used, waited = time.process_time() - used, time.perf_counter() - started
    size = tensor.numel() * tensor.element_size()
    return {"bytes": size, "calls": 1, **_times([used]), "waited_us": waited * 1e6}


def _times(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    count = len(ordered)
    return {
        "min_us": ordered[0] * 1e6,
        "median_us": ordered[count // 2] * 1e6,
        "p90_us": ordered[(count - 1) * 9 // 10] * 1e6,
        "mean_us": sum(ordered) / count * 1e6,
    }


def _timed(make: Callable[[Library], Work]) -> Callable[[Library, float], dict[str, object]]:
    return lambda library, budget: measure(library, make(library), budget)


# By the names that harness.aims has for them.
WORKS: dict[str, Callable[[Library, float], dict[str, object]]] = {
    "gradients": _timed(gradients),
    "small": _timed(small),
    "named": _timed(named),
    "resnet": _timed(resnet_step),
    "transformer": _timed(transformer_step),
    "waiting": waiting,
}


def main(connect: Callable[[], Library]) -> None:
    """Measure the works on the command line and print this rank's lines."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, required=True)
    arguments.add_argument("works", choices=sorted(WORKS), nargs="+")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    library = connect()
    # Ranks draw data and weights of their own; libraries make the weights equal before training.
    torch.manual_seed(library.rank)
    for name in options.works:
        line = {"work": name, "rank": library.rank, **WORKS[name](library, options.seconds)}
        print(json.dumps(line), flush=True)
