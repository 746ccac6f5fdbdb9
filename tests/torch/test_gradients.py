"""Autograd goes through every blocking operation, and the gradients are those that Horovod's users rely on."""

from __future__ import annotations

import torch
from torch import Tensor

import horovod.torch as hvd
from together import on_ranks


def leaf(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, requires_grad=True)


def weights(*shape: int) -> Tensor:
    """Return gradients to start from, different on each rank."""
    return torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64).reshape(shape) * (hvd.rank() + 1)


def ramp(size: int) -> float:
    """Return 1 + 2 + ... + size, which is what the factors of all ranks add up to."""
    return size * (size + 1) / 2


def check(tensor: Tensor, expected: Tensor) -> None:
    assert tensor.grad is not None
    torch.testing.assert_close(tensor.grad, expected)
    tensor.grad = None


@on_ranks(2, 3)
def test_gradient_of_allreduce_is_reduced_like_the_tensor() -> None:
    size = hvd.size()
    once = weights(5) / (hvd.rank() + 1)
    x = leaf(5)
    for op, factor in ((hvd.Sum, ramp(size)), (hvd.Average, ramp(size) / size)):
        hvd.allreduce(x, op=op).backward(weights(5))
        check(x, once * factor)
        hvd.allreduce(x, op=op, name="named", prescale_factor=3.0, postscale_factor=0.5).backward(weights(5))
        check(x, once * factor * 1.5)
        for y in hvd.grouped_allreduce([x, x], op=op, prescale_factor=2.0):
            y.backward(weights(5), retain_graph=True)
            check(x, once * factor * 2)
    some = hvd.add_process_set(list(range(1, size)))
    if some.included():
        hvd.allreduce(x, op=hvd.Sum, process_set=some).backward(weights(5))
        check(x, once * (ramp(size) - 1))
    hvd.remove_process_set(some)


@on_ranks(2, 3)
def test_gradient_of_allgather_is_averaged_and_cut() -> None:
    rank, size = hvd.rank(), hvd.size()
    rows = [other + 1 for other in range(size)]
    x = leaf(rows[rank], 2)
    start = weights(sum(rows), 2)
    expected = (start / (rank + 1) * ramp(size) / size).split(rows)[rank]
    hvd.allgather(x).backward(start)
    check(x, expected)
    hvd.allgather(x, name="named").backward(start)
    check(x, expected)
    first, second = hvd.grouped_allgather([x, 2 * x])
    first.backward(start, retain_graph=True)
    check(x, expected)
    second.backward(start)
    check(x, 2 * expected)


@on_ranks(2, 3)
def test_gradient_of_broadcast_goes_to_the_root() -> None:
    size = hvd.size()
    x = leaf(4)
    root = size - 1
    hvd.broadcast(x, root).backward(weights(4))
    once = weights(4) / (hvd.rank() + 1)
    check(x, once * ramp(size) / size if hvd.rank() == root else torch.zeros(4, dtype=torch.float64))


@on_ranks(2, 3)
def test_gradient_of_alltoall_travels_back() -> None:
    rank, size = hvd.rank(), hvd.size()
    x = leaf(2 * size, 3)
    result = hvd.alltoall(x)
    result.backward(torch.full_like(result, rank + 1.0))
    # Two rows went to each rank, and every rank sends its own number back.
    expected = torch.arange(1, size + 1, dtype=torch.float64).repeat_interleave(2).unsqueeze(1).expand(-1, 3)
    check(x, expected)

    splits = [other + 1 for other in range(size)]
    x = leaf(sum(splits) + 2, 3)
    result, received = hvd.alltoall(x, splits=torch.tensor(splits, dtype=torch.int32), name="with splits")
    assert received.tolist() == [rank + 1] * size
    assert not received.requires_grad
    result.backward(torch.full_like(result, rank + 1.0))
    sent = torch.arange(1, size + 1, dtype=torch.float64).repeat_interleave(torch.tensor(splits))
    check(x, torch.cat([sent, torch.zeros(2, dtype=torch.float64)]).unsqueeze(1).expand(-1, 3))


@on_ranks(2, 3)
def test_gradient_of_reducescatter_is_gathered_and_scaled() -> None:
    rank, size = hvd.rank(), hvd.size()
    x = leaf(2 * size + 1, 2)
    rows = [3, *[2] * (size - 1)]
    everywhere = torch.arange(1, size + 1, dtype=torch.float64).repeat_interleave(torch.tensor(rows)).unsqueeze(1)
    everywhere = everywhere.expand(-1, 2)
    for op, factor in ((hvd.Average, 1), (hvd.Sum, size)):
        result = hvd.reducescatter(x, op=op)
        result.backward(torch.full_like(result, rank + 1.0))
        check(x, everywhere * factor)
        result = hvd.reducescatter(x, op=op, prescale_factor=3.0, postscale_factor=0.5)
        result.backward(torch.full_like(result, rank + 1.0))
        check(x, everywhere * factor * 1.5)
        for result in hvd.grouped_reducescatter([x, x], op=op, prescale_factor=2.0):
            result.backward(torch.full_like(result, rank + 1.0), retain_graph=True)
            check(x, everywhere * factor * 2)


@on_ranks(2)
def test_gradients_pass_through_compression() -> None:
    x = torch.ones(3, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16).sum().backward()
    check(x, torch.full((3,), 2.0))


@on_ranks(2)
def test_a_gradient_of_a_gradient() -> None:
    x = leaf(3)
    (first,) = torch.autograd.grad(hvd.allreduce(x, op=hvd.Sum).pow(3).sum(), x, create_graph=True)
    first.sum().backward()
    total = hvd.allreduce(x.detach(), op=hvd.Sum)
    # The chain passes through two reductions over two ranks.
    check(x, 6 * total * 4)


@on_ranks(2)
def test_nothing_is_tracked_where_nobody_asks_for_it() -> None:
    x = leaf(3)
    with torch.no_grad():
        assert not hvd.allreduce(x).requires_grad
        assert not hvd.allgather(x).requires_grad
    assert hvd.allreduce(x).requires_grad
    assert not hvd.allreduce(x.detach()).requires_grad
