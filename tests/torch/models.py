"""Small trainings whose result with several ranks must be that of one process with the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import horovod.torch as hvd
from prepare import DEVICE

STEPS = 5
ROWS = 12


def network() -> nn.Module:
    """Return the same small network on every rank."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batches(steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """Return the whole batches, the same ones on every rank."""
    generator = torch.Generator("cpu").manual_seed(11)
    return [
        (
            torch.randn(ROWS, 6, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE),
            torch.randint(0, 3, (ROWS,), generator=generator, device="cpu").to(DEVICE),
        )
        for _ in range(steps)
    ]


def own_part(batch: Tensor, rank: int | None = None, size: int | None = None) -> Tensor:
    """Return a rank's share of a batch."""
    return batch.chunk(size or hvd.size())[hvd.rank() if rank is None else rank]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), targets)


def train_alone(make: Callable[[Any], Any], steps: int = STEPS, scale: float = 1.0) -> nn.Module:
    """Train with plain PyTorch on whole batches; the loss may be scaled."""
    model = network()
    optimizer = make(model.parameters())
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        (loss_of(model, inputs, targets) * scale).backward()
        optimizer.step()
    return model


def train_together(make: Callable[[Any], Any], steps: int = STEPS, **options: Any) -> nn.Module:
    """Train with all ranks, each on its part of the batches."""
    model = network()
    if callable(options.get("groups")):
        options["groups"] = options["groups"](model)
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        loss_of(model, own_part(inputs), own_part(targets)).backward()
        optimizer.step()
    return model


def assert_same(model: nn.Module, other: nn.Module, tolerance: float = 1e-10) -> None:
    """Fail unless two models have the same parameters and buffers."""
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys() != set()
    for name, value in ours.items():
        torch.testing.assert_close(
            value, theirs[name], rtol=tolerance, atol=tolerance, msg=f"{name}: {value} is not {theirs[name]}"
        )


def assert_same_on_all_ranks(model: nn.Module) -> None:
    """Fail unless all ranks have the same bits."""
    for name, value in model.state_dict().items():
        low, high = hvd.allreduce(value, op=hvd.Min), hvd.allreduce(value, op=hvd.Max)
        assert torch.equal(low, high), name
