"""Times training steps of ResNet-50 with `DistributedOptimizer` on one rank, beside the same steps without it.

    HOROVOD_ELASTIC=1 python -m gpu.steps --rounds 12 --block 10 [--way fp16|ddp] bf16 fp32

One rank exchanges with nobody, so what comes on top is what our hooks, fusion and streams cost; HOROVOD_ELASTIC=1 has
them take part. Both train in one process, in blocks of steps that follow each other as plain, ours, ours, plain, so
that a GPU that gets warmer or slower does so for both. What the two plain blocks of a round differ by is the noise.

With ``--way ddp`` PyTorch's own DistributedDataParallel, with one rank of NCCL, stands in our place.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from gpu.stopwatch import Stopwatch, the_device

WARM_UP_STEPS = 10
IMAGE = 224
CLASSES = 1000


class NotTakingPartError(Exception):
    """The optimizer under test exchanged nothing, so there is nothing to measure."""


@dataclass(frozen=True)
class Case:
    """How a network is trained."""

    images: int
    half: bool
    """With bfloat16 where autocast takes it, and images with their channels last."""


CASES = {"bf16": Case(256, half=True), "fp32": Case(64, half=False)}
# How gradients travel: by our optimizer as they are or compressed, or by PyTorch's DDP.
WAYS = ("none", "fp16", "ddp")


class Training:
    """A network, its optimizer, and a batch that stays on the device."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], half: bool
    ) -> None:
        self._model, self.optimizer = model, optimizer
        self._images, self._labels = batch
        self._half = half
        self.loss: Tensor | None = None

    def backward(self) -> None:
        """Compute the gradients."""
        self.optimizer.zero_grad()
        with torch.autocast(self._images.device.type, dtype=torch.bfloat16, enabled=self._half):
            self.loss = functional.cross_entropy(self._model(self._images), self._labels)
        self.loss.backward()

    def step(self) -> None:
        """Train on the batch."""
        self.backward()
        self.optimizer.step()


def resnet50() -> nn.Module:
    """Return torchvision's network with random weights."""
    from torchvision.models import resnet50 as network

    return network(weights=None)


def trainings(
    make: Callable[[], nn.Module],
    case: Case,
    device: torch.device,
    image: int = IMAGE,
    classes: int = CLASSES,
    way: str = "none",
) -> tuple[Training, Training]:
    """Return plain training and ours, or the peer's, of the same network with the same weights."""
    torch.manual_seed(1)
    order: Any = torch.channels_last if case.half else torch.contiguous_format
    plain_model = make().to(device=device, memory_format=order)
    our_model = copy.deepcopy(plain_model)
    images = torch.randn(case.images, 3, image, image, device=device).to(memory_format=order)
    batch = images, torch.randint(classes, (case.images,), device=device)

    def descent(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    plain = Training(plain_model, descent(plain_model), batch, case.half)
    if way == "ddp":
        return plain, Training(DistributedDataParallel(our_model), descent(our_model), batch, case.half)
    ours = hvd.DistributedOptimizer(
        descent(our_model),
        named_parameters=our_model.named_parameters(),
        compression=getattr(hvd.Compression, way),
    )
    return plain, Training(our_model, ours, batch, case.half)


def compare(plain: Training, ours: Training, rounds: int, block: int, device: torch.device) -> dict[str, object]:
    """Train both in turns and return what a step takes, and how much longer ours does."""
    _warm_up(plain, ours)
    stopwatch = Stopwatch(device)

    def steps_of(training: Training) -> float:
        stopwatch.start()
        for _ in range(block):
            training.step()
        return stopwatch.stop() / block

    taken = [[steps_of(training) for training in (plain, ours, ours, plain)] for _ in range(rounds)]
    for training in (plain, ours):
        if training.loss is None or not training.loss.isfinite():
            raise ArithmeticError(f"the loss became {training.loss}")
    return {
        "plain_us": statistics.median([(first + last) / 2 for first, _, _, last in taken]) * 1e6,
        "ours_us": statistics.median([(one + two) / 2 for _, one, two, _ in taken]) * 1e6,
        **ratios(taken),
    }


def ratios(taken: list[list[float]]) -> dict[str, float]:
    """Return what ours takes over plain, and what the noise is, of rounds of plain, ours, ours, plain."""
    return {
        "ratio": statistics.median([(one + two) / (first + last) for first, one, two, last in taken]),
        "noise": statistics.median([abs(last / first - 1) for first, _, _, last in taken]),
    }


def _warm_up(plain: Training, ours: Training) -> None:
    for training in (plain, ours):
        for _ in range(WARM_UP_STEPS):
            training.step()
    ours.backward()
    if getattr(ours.optimizer, "_in_flight", None) == 0:
        raise NotTakingPartError("no gradient is under way after a backward pass: HOROVOD_ELASTIC=1 was not heard")
    ours.optimizer.step()


def main() -> None:
    """Measure the cases that the command line names, and print a line for each."""
    parser = argparse.ArgumentParser(description="Time training steps with DistributedOptimizer and without.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block", type=int, default=5, help="steps that are timed as one")
    parser.add_argument("--way", choices=WAYS, default="none", help="how gradients travel")
    parser.add_argument("cases", nargs="+", choices=CASES)
    options = parser.parse_args()
    device = the_device()
    hvd.init()
    torch.backends.cudnn.benchmark = True
    if options.way == "ddp":
        distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1, device_id=device)
    for name in options.cases:
        both = trainings(resnet50, CASES[name], device, way=options.way)
        found = compare(*both, options.rounds, options.block, device)
        print(json.dumps({"work": "step", "case": name, **found}), flush=True)
        torch.cuda.empty_cache()
    hvd.shutdown()
    if options.way == "ddp":
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
