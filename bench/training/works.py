"""The works of the training benchmark with PyTorch, whatever library exchanges the gradients.

They are timed by `training.timing`; each rank prints one JSON line for each. The library under test is given by the
program that calls `main`: `training.hvd`, `training.gloo` or `training.alone`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from models import Transformer, resnet
from training.timing import Ranks, Work, measure, times

SMALL_TENSORS = 1000
SMALL_FLOATS = 256
SLOW_RANK = 1
SLEEP_SECONDS = 5.0


class Library(Ranks, Protocol):
    """What exchanges gradients, as seen from one rank."""

    def allreduce(self, tensor: Tensor) -> None:
        """Average one tensor over all ranks, in place."""

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """Average the gradients of a network in place, as this library does it best, in the order given."""

    def exchange_each(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors in place, each by a call of its own, all under way at once."""

    def distribute(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model and the optimizer to train with, so that ranks train together."""


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
    return {"bytes": size, "calls": 1, **times([used]), "waited_us": waited * 1e6}


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
