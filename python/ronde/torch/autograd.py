"""The blocking operations, which autograd can differentiate.

The gradient of an exchange is another exchange, so every rank that runs a forward pass has to run the backward pass as
well. Where no gradient is asked for, the operation is started directly: the autograd function costs more than a small
exchange does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ronde._collectives import Average, Sum
from ronde.process_sets import ProcessSet, global_process_set
from ronde.torch import ops
from ronde.torch.arguments import reduction
from ronde.torch.compression import Compression, Compressor, pack_all, wire_of
from ronde.torch.handles import synchronize

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce a tensor over all ranks and return the result.

    ``op`` is one of Average (the default), Sum, Adasum, Min, Max and Product. Elements are multiplied by
    ``prescale_factor`` before and by ``postscale_factor`` after. ``compression`` says how they travel. ``average`` is
    the old way to choose Average or Sum.

    >>> import torch, horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum).tolist()
    [1.0, 2.0]
    """
    op = reduction(op, average, process_set)
    (packed,), (undo,), left = pack_all(compression, [tensor])
    arguments = (name, op, prescale_factor, postscale_factor, process_set, left)
    return undo(_Allreduce.apply(packed, *arguments) if _tracked([packed]) else _allreduce(packed, *arguments))


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce several tensors together and return the results as a list."""
    op = reduction(op, average, process_set)
    packed, undos, left = pack_all(compression, tensors)
    arguments = (name, op, prescale_factor, postscale_factor, process_set, left)
    if _tracked(packed):
        results = _GroupedAllreduce.apply(*arguments, *packed)
    else:
        results = _grouped_allreduce(packed, *arguments)
    return [undo(result) for undo, result in zip(undos, results)]


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Join the tensors of all ranks along the first dimension, which may differ between ranks.

    >>> import torch, horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.allgather(torch.zeros(2, 3)).shape
    torch.Size([2, 3])
    """
    if _tracked([tensor]):
        return _Allgather.apply(tensor, name, process_set)
    return synchronize(ops.allgather_async(tensor, name, process_set))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Join several tensors, each with its like on the other ranks."""
    if _tracked(tensors):
        return list(_GroupedAllgather.apply(name, process_set, *tensors))
    return synchronize(ops.grouped_allgather_async(tensors, name, process_set))


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return the root's tensor on every rank; the others' give the shape and the type.

    ``root_rank`` counts in the job, also where a process set is given.

    >>> import torch, horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.broadcast(torch.tensor([7, 8]), root_rank=0).tolist()
    [7, 8]
    """
    if _tracked([tensor]):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return synchronize(ops.broadcast_async(tensor, root_rank, name, process_set))


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank and return those received, in the order of the ranks they come from.

    ``splits`` says how many rows go to each rank; the result is then a pair of the rows and how many came from each.
    Without it every rank gets the same number, and the rows alone are returned.

    >>> import torch, horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.alltoall(torch.arange(3)).tolist()
    [0, 1, 2]
    """
    if _tracked([tensor]):
        rows, received = _Alltoall.apply(tensor, splits, name, process_set)
    else:
        rows, received = synchronize(ops.alltoall_async(tensor, splits, name, process_set))
    return rows if splits is None else (rows, received)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce (Average or Sum) and return this rank's share of the rows; the first ranks get one more if uneven.

    >>> import torch, horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.reducescatter(torch.ones(4, 2), op=hvd.Sum).shape
    torch.Size([4, 2])
    """
    packed, context = compression.compress(tensor)
    arguments = (name, op, process_set, prescale_factor, postscale_factor)
    if _tracked([packed]):
        result = _Reducescatter.apply(packed, *arguments)
    else:
        result = synchronize(ops.reducescatter_async(packed, *arguments))
    return compression.decompress(result, context)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Do ``reducescatter`` of several tensors together."""
    packed, contexts = _compress_all(compression, tensors)
    arguments = (name, op, process_set, prescale_factor, postscale_factor)
    if _tracked(packed):
        results = _GroupedReducescatter.apply(*arguments, *packed)
    else:
        results = synchronize(ops.grouped_reducescatter_async(packed, *arguments))
    return [compression.decompress(result, context) for result, context in zip(results, contexts)]


class _Allreduce(torch.autograd.Function):
    """Gradients are reduced as the tensor was, and travel as it did."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *arguments: Any) -> Tensor:
        ctx.arguments = arguments
        return _allreduce(tensor, *arguments)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        name, op, prescale, postscale, process_set, compression = ctx.arguments
        reduced = allreduce(
            gradient,
            name=_backward(name),
            compression=compression,
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return (reduced, *[None] * 6)


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: Any,
        compression: Any,
        *tensors: Any,
    ) -> Any:
        ctx.arguments = (name, op, prescale, postscale, process_set, compression)
        return _grouped_allreduce(tensors, *ctx.arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        name, op, prescale, postscale, process_set, compression = ctx.arguments
        reduced = grouped_allreduce(
            gradients,
            name=_backward(name),
            compression=compression,
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return (*[None] * 6, *reduced)


class _Allgather(torch.autograd.Function):
    """Gradients are averaged, and each rank takes the rows it gave."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.rows, ctx.name, ctx.process_set = tensor.shape[0] if tensor.dim() else 1, name, process_set
        return synchronize(ops.allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        name = _backward(ctx.name)
        averaged = allreduce(gradient, name=name, op=Average, process_set=ctx.process_set)
        (own,) = _own_rows([averaged], [ctx.rows], name, ctx.process_set)
        return own, None, None


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> Any:
        ctx.rows = [tensor.shape[0] if tensor.dim() else 1 for tensor in tensors]
        ctx.name, ctx.process_set = name, process_set
        return tuple(synchronize(ops.grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        name = _backward(ctx.name)
        averaged = grouped_allreduce(gradients, name=name, op=Average, process_set=ctx.process_set)
        return (None, None, *_own_rows(averaged, ctx.rows, name, ctx.process_set))


class _Broadcast(torch.autograd.Function):
    """Gradients are averaged for the root; nothing on the other ranks had an influence."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.root_rank, ctx.name, ctx.process_set = root_rank, name, process_set
        return synchronize(ops.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        averaged = allreduce(gradient, name=_backward(ctx.name), op=Average, process_set=ctx.process_set)
        if global_process_set.rank() != ctx.root_rank:
            averaged = torch.zeros_like(averaged)
        return averaged, None, None, None


class _Alltoall(torch.autograd.Function):
    """Gradients go back the way the rows came."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        rows, received = synchronize(ops.alltoall_async(tensor, splits, name, process_set))
        ctx.rows, ctx.received, ctx.name, ctx.process_set = tensor.shape[0], received, name, process_set
        return rows, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        returned, _ = alltoall(gradient, ctx.received, _backward(ctx.name), ctx.process_set)
        kept = ctx.rows - returned.shape[0]
        if kept:
            # Rows that the splits left out went nowhere.
            returned = torch.cat([returned, returned.new_zeros((kept, *returned.shape[1:]))])
        return returned, None, None, None


class _Reducescatter(torch.autograd.Function):
    """Each rank's gradient is for all ranks' rows of that share."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *arguments: Any) -> Tensor:
        ctx.arguments = arguments
        return synchronize(ops.reducescatter_async(tensor, *arguments))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        name, _, process_set, _, _ = ctx.arguments
        gathered = allgather(gradient * _scale(ctx.arguments), _backward(name), process_set)
        return (gathered, *[None] * 5)


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, process_set: Any, prescale: float, postscale: float, *tensors: Any
    ) -> Any:
        ctx.arguments = (name, op, process_set, prescale, postscale)
        return tuple(synchronize(ops.grouped_reducescatter_async(tensors, *ctx.arguments)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        name, _, process_set, _, _ = ctx.arguments
        scale = _scale(ctx.arguments)
        gathered = grouped_allgather([gradient * scale for gradient in gradients], _backward(name), process_set)
        return (*[None] * 5, *gathered)


def _allreduce(
    tensor: Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    compression: Any,
) -> Tensor:
    wire = wire_of(compression, tensor)
    arguments = (name, op, prescale, postscale, process_set)
    return synchronize(ops.start_allreduce(tensor, False, *arguments, awaited=True, wire=wire))


def _grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    compression: Any,
) -> Any:
    wires = [wire_of(compression, tensor) for tensor in tensors]
    arguments = (name, op, prescale, postscale, process_set)
    return synchronize(ops.start_grouped_allreduce(tensors, False, *arguments, wires=wires))


def _tracked(tensors: Sequence[Tensor]) -> bool:
    """Tell whether autograd follows what is done to the tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _backward(name: str | None) -> str | None:
    """Name the exchange of the gradients after the one they belong to."""
    return None if name is None else name + ".gradient"


def _compress_all(compression: type[Compressor], tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Any]]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [packed for packed, _ in pairs], [context for _, context in pairs]


def _own_rows(
    gradients: Sequence[Tensor], rows: Sequence[int], name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    """Take from gathered gradients the rows that came from this rank, whose numbers of rows are given."""
    name = None if name is None else name + ".rows"
    numbers = synchronize(ops.allgather_async(torch.tensor([rows], device="cpu"), name, process_set))
    before = numbers[: process_set.rank()].sum(0).tolist()
    return [gradient.narrow(0, first, count) for gradient, first, count in zip(gradients, before, rows)]


def _scale(arguments: tuple[Any, ...]) -> float:
    """Return what the gradient of a reducescatter is multiplied by."""
    _, op, process_set, prescale, postscale = arguments
    size = process_set.size() if op == Sum else 1
    scale: float = size * prescale * postscale
    return scale
