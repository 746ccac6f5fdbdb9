"""Training on the GPU with one, two and four ranks is training with one process that sees the whole batch.

One rank alone counts as several that may come and go, so that hooks, fusion and streams take part there as well.
"""

from __future__ import annotations

from typing import Any

import torch

import horovod.torch as hvd
from horovod.common import util
from models import assert_same, assert_same_on_all_ranks, train_alone, train_together
from ronde.torch.hooked_optimizer import HookedOptimizer
from together import on_ranks


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9, weight_decay=0.01)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


@on_ranks(1, 2, 4)
def test_weights_are_those_of_one_process() -> None:
    for make in (momentum, adam):
        plain = train_alone(make)
        assert next(plain.parameters()).is_cuda
        for options in ({}, {"groups": 2}, {"gradient_predivide_factor": 2.0}):
            with util.env(HOROVOD_ELASTIC="1"):
                together = train_together(make, **options)
            assert next(together.parameters()).is_cuda
            assert_same(together, plain)
            assert_same_on_all_ranks(together)


@on_ranks(1, 2, 4)
def test_hooks_take_part_with_one_rank_too() -> None:
    weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
    with util.env(HOROVOD_ELASTIC="1"):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Sum)
    assert isinstance(optimizer, HookedOptimizer)
    (weight * (hvd.rank() + 1.0)).sum().backward()
    assert optimizer._in_flight == 1
    optimizer.step()
    size = hvd.size()
    assert weight.tolist() == [1.0 - size * (size + 1) / 2] * 3


@on_ranks(2, 4)
def test_compressed_gradients_train_nearly_the_same() -> None:
    plain = train_alone(momentum)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        together = train_together(momentum, compression=compression)
        assert_same(together, plain, tolerance=0.05)
        assert_same_on_all_ranks(together)
