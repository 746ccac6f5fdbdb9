"""Batch normalisation over all ranks is that of one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd
from prepare import DEVICE
from together import on_ranks

SHAPES = [(11, 4), (11, 4, 5), (11, 4, 3, 2), (11, 4, 3, 2, 2)]


def whole(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(9)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    # Far from zero, where differences of squares would lose everything.
    return (numbers * 3 + 1000).to(DEVICE, dtype)


def parts(batch: Tensor, empty: bool) -> list[Tensor]:
    """Deal a batch unevenly; one rank may get nothing."""
    size = hvd.size()
    rows = [0, *range(1, size)] if empty else list(range(1, size + 1))
    rows[-1] = len(batch) - sum(rows[:-1])
    return list(batch.split(rows))


def plain_norm(shape: tuple[int, ...], **options: object) -> nn.Module:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    return kind(4, **options).double()


@on_ranks(2, 3)
def test_output_statistics_and_gradients_are_those_of_the_whole_batch() -> None:
    cases = [
        ({}, False),
        ({}, True),
        ({"affine": False}, False),
        ({"momentum": None}, False),
        ({"momentum": 0.3, "eps": 0.1}, False),
        ({"track_running_stats": False}, False),
    ]
    for shape in SHAPES:
        for options, empty in cases:
            batch = whole(shape, torch.float64)
            weights = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64, device="cpu")
            weights = weights.to(batch.device)
            plain, synced = plain_norm(shape, **options), hvd.SyncBatchNorm(4, **options).double()
            if plain.affine:
                for norm in (plain, synced):
                    norm.weight.data.copy_(torch.tensor([0.5, 1.0, 2.0, 3.0]))
                    norm.bias.data.copy_(torch.tensor([0.0, 1.0, -1.0, 2.0]))
            for _ in range(2):
                everything = batch.clone().requires_grad_()
                expected = plain(everything)
                (expected * weights).sum().backward()
                mine = parts(batch, empty)[hvd.rank()].clone().requires_grad_()
                found = synced(mine)
                (found * parts(weights, empty)[hvd.rank()]).sum().backward()
                torch.testing.assert_close(found, parts(expected, empty)[hvd.rank()], rtol=1e-8, atol=1e-8)
                assert everything.grad is not None
                torch.testing.assert_close(mine.grad, parts(everything.grad, empty)[hvd.rank()], rtol=1e-7, atol=1e-7)
            for (name, value), other in zip(plain.state_dict().items(), synced.state_dict().values()):
                torch.testing.assert_close(value, other, msg=lambda m, name=name: f"{name}: {m}")
            if plain.affine:
                # Parameters have local gradients, as any others; together they are those of the whole.
                for ours, theirs in zip(synced.parameters(), plain.parameters()):
                    torch.testing.assert_close(hvd.allreduce(ours.grad, op=hvd.Sum), theirs.grad)


@on_ranks(2)
def test_in_evaluation_it_is_any_batch_norm() -> None:
    plain, synced = plain_norm((2, 4)), hvd.SyncBatchNorm(4).double()
    for norm in (plain, synced):
        norm.running_mean.fill_(1000.0)
        norm.eval()
    # No exchange takes place: only one rank asks.
    if hvd.rank() == 0:
        batch = whole((3, 4), torch.float64)
        torch.testing.assert_close(synced(batch), plain(batch))
        untracked = hvd.SyncBatchNorm(4, track_running_stats=False).double().eval()
        torch.testing.assert_close(untracked(batch), plain_norm((3, 4), track_running_stats=False)(batch))


@on_ranks(2)
def test_half_precision_is_computed_in_single() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        batch = (whole((10, 4, 5), torch.float64) - 1000).to(dtype)
        synced = hvd.SyncBatchNorm(4)
        found = synced(batch.chunk(2)[hvd.rank()])
        assert found.dtype is dtype
        expected = nn.BatchNorm1d(4)(batch.float()).chunk(2)[hvd.rank()]
        torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)


@on_ranks(2)
def test_wrong_input_is_refused_on_every_rank() -> None:
    norm = hvd.SyncBatchNorm(4)
    with pytest.raises(ValueError, match="at least 2D"):
        norm(torch.ones(4))
    with pytest.raises(ValueError, match="more than 1 value"):
        norm(torch.ones(1 if hvd.rank() == 0 else 0, 4))
    assert norm(torch.randn(1, 4)).shape == (1, 4)
