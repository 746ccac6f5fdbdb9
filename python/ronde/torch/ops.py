"""The asynchronous operations and their in-place forms, straight onto the engine.

Each one starts an operation and returns a handle; :func:`synchronize` waits and gives the result. Ranks find each other
by name: ``<operation>.<name>``, or a running number where none was given, so that unnamed operations pair up by the
order in which they are started. What can be differentiated is in :mod:`ronde.torch.autograd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ronde import _core
from ronde._collectives import Adasum, Average, Max, Min, Product, Sum
from ronde.process_sets import ProcessSet, global_process_set
from ronde.torch.arguments import (
    input_of,
    key_of,
    number_of,
    reduction,
    rooms_of,
    root_of,
    same_device,
    share_of,
    splits_of,
)
from ronde.torch.handles import keep, synchronize
from ronde.torch.memory import PLAIN, back_to, prefer, room_for, stream_of, wrap

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather_async",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "barrier",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "join",
    "reducescatter_async",
]


# Looked up once, since small operations are started by the thousand.
_allreduce_plain = PLAIN.allreduce


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a reduction over all ranks; the result is a new tensor.

    ``op`` is one of Average (the default), Sum, Adasum, Min, Max and Product. Elements are multiplied by
    ``prescale_factor`` before and by ``postscale_factor`` after. ``average`` is the old way to choose Average or Sum.
    """
    op = Average if op is None and average is None else reduction(op, average, process_set)
    return start_allreduce(tensor, False, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a reduction in place: the tensor must be left alone until ``synchronize`` and holds the result then."""
    op = Average if op is None and average is None else reduction(op, average, process_set)
    number = process_set.process_set_id
    if name is not None and number is not None:
        started = _allreduce_plain(tensor, name, op, prescale_factor, postscale_factor, number, 0, False)
        if started is not None:
            return started
    return start_allreduce(tensor, True, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce a tensor over all ranks, in place, and return it."""
    op = reduction(op, average, process_set)
    handle = start_allreduce(tensor, True, name, op, prescale_factor, postscale_factor, process_set, awaited=True)
    return synchronize(handle)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a reduction of several tensors, which run together; one handle, whose result is a tuple of new tensors."""
    op = reduction(op, average, process_set)
    return start_grouped_allreduce(tensors, False, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a reduction of several tensors in place."""
    op = reduction(op, average, process_set)
    return start_grouped_allreduce(tensors, True, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, ...]:
    """Reduce several tensors over all ranks, in place, and return them."""
    op = reduction(op, average, process_set)
    return synchronize(start_grouped_allreduce(tensors, True, name, op, prescale_factor, postscale_factor, process_set))


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start joining the tensors of all ranks along the first dimension, which may differ between ranks."""
    key = key_of("allgather", name, process_set)
    source, entry = input_of("allgather", key, tensor, process_set)
    number, stream = number_of(process_set), stream_of(source)
    room = room_for(source, process_set.size() or 1)
    handle = _core.enqueue_allgather(number, key, [entry], False, False, stream, rooms_of([room]))
    return keep(handle, (tensor, room), _gathered, source, stream)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start joining several tensors, each with its like on the other ranks; one handle, whose result is a list."""
    key = key_of("grouped_allgather", name, process_set)
    tensors = same_device(tensors)
    inputs = [input_of("allgather", key, tensor, process_set, len(tensors)) for tensor in tensors]
    number, stream = number_of(process_set), stream_of(inputs[0][0])
    rooms = [room_for(source, process_set.size() or 1) for source, _ in inputs]
    entries = [entry for _, entry in inputs]
    handle = _core.enqueue_allgather(number, key, entries, True, False, stream, rooms_of(rooms))
    return keep(handle, (tensors, rooms), _gathered_group, inputs, stream)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start sending the root's tensor to every rank; the result is a new tensor. ``root_rank`` counts in the job."""
    return _start_broadcast(tensor, False, root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start overwriting the tensor with the root's."""
    return _start_broadcast(tensor, True, root_rank, name, process_set)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite the tensor with the root's, and return it."""
    return synchronize(_start_broadcast(tensor, True, root_rank, name, process_set))


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending rows to every rank: ``splits[i]`` of them to rank i, or the same number to each without it.

    The result is a pair: the rows received, in the order of the ranks they come from, and how many came from each.
    """
    key = key_of("alltoall", name, process_set)
    source, (address, shape, dtype) = input_of("alltoall", key, tensor, process_set)
    counts = splits_of(key, tensor, splits, process_set)
    number, stream = number_of(process_set), stream_of(source)
    room = room_for(source, 1)
    (target,) = rooms_of([room])
    handle = _core.enqueue_alltoall(number, key, address, shape, dtype, counts, False, stream, target)
    place = splits.device if isinstance(splits, Tensor) else "cpu"
    return keep(handle, (tensor, room, place), _exchanged, source, stream)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reduction (Average or Sum) whose rows are shared out: the first ranks get one more if it is uneven."""
    key = key_of("reducescatter", name, process_set)
    source, output, entry = share_of(key, tensor, op, process_set)
    number, stream = number_of(process_set), stream_of(source)
    handle = _core.enqueue_reducescatter(
        number, key, [entry], op, prescale_factor, postscale_factor, False, False, stream
    )
    return keep(handle, (tensor, output), _returned, source, stream)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start ``reducescatter`` of several tensors, which run together; one handle, whose result is a list."""
    key = key_of("grouped_reducescatter", name, process_set)
    tensors = same_device(tensors)
    shares = [share_of(key, tensor, op, process_set, len(tensors)) for tensor in tensors]
    entries = [entry for _, _, entry in shares]
    number, stream = number_of(process_set), stream_of(shares[0][0])
    handle = _core.enqueue_reducescatter(
        number, key, entries, op, prescale_factor, postscale_factor, True, False, stream
    )
    outputs = [output for _, output, _ in shares]
    return keep(handle, (tensors, outputs), _returned_group, shares, stream)


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all have said so; returns the rank that said so last.

    Meanwhile this rank takes part in the allreduces of the others with zeros. ``device`` is the GPU that it does so
    with, if it had no tensor on one before; without it, the current one.
    """
    prefer(device)
    last: int = _core.wait(_core.enqueue_join("join.noname", True))
    # Ranks that joined later have called more operations; from here on all count alike again.
    global_process_set.count_anew()
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set is here."""
    _core.wait(_core.enqueue_barrier(number_of(process_set), "barrier.noname", True))


def start_allreduce(
    tensor: Tensor,
    in_place: bool,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int = 0,
    awaited: bool = False,
    wire: int | None = None,
) -> int:
    """Start an allreduce; what has a low ``priority`` is wanted early, what is ``awaited`` is waited for right away.

    ``wire`` is the type to send it in, as :func:`ronde.torch.compression.wire_of` says.
    """
    if name is None:
        name = f"noname.{next(process_set.unnamed)}"
    number = process_set.process_set_id
    if in_place and number is not None:
        started = _allreduce_plain(tensor, name, op, prescale, postscale, number, priority, awaited, wire)
        if started is not None:
            return started
    key = "allreduce." + name
    source, (address, shape, dtype) = input_of("allreduce", key, tensor, process_set)
    # What is not the tensor itself is a copy, which may as well take the result.
    output = source if in_place or source is not tensor else torch.empty_like(tensor)
    stream = stream_of(source)
    handle = _core.enqueue_allreduce(
        number_of(process_set),
        key,
        address,
        output.data_ptr(),
        shape,
        dtype,
        op,
        prescale,
        postscale,
        priority,
        awaited,
        stream,
        wire,
    )
    if source is tensor:
        return keep(handle, output, None, source, stream)
    return keep(handle, (tensor, output), _put_back if in_place else _returned, None, stream)


def start_grouped_allreduce(
    tensors: Sequence[Tensor],
    in_place: bool,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int = 0,
    wires: Sequence[int | None] = (),
) -> int:
    """Start an allreduce of several tensors; what has a low ``priority`` is wanted early.

    ``wires`` are the types to send them in, one a tensor; without it, all are sent as they are.
    """
    key = key_of("grouped_allreduce", name, process_set)
    tensors = same_device(tensors)
    entries, outputs, sources = [], [], []
    for tensor in tensors:
        source, (address, shape, dtype) = input_of("allreduce", key, tensor, process_set, len(tensors))
        output = torch.empty_like(tensor) if source is tensor and not in_place else source
        entries.append((address, output.data_ptr(), shape, dtype))
        outputs.append(output)
        sources.append(source)
    number, stream = number_of(process_set), stream_of(sources[0])
    handle = _core.enqueue_grouped_allreduce(
        number, key, entries, op, prescale, postscale, priority, False, stream, wires
    )
    return keep(handle, (tensors, tuple(outputs)), _put_back_group if in_place else _returned_tuple, sources, stream)


def _start_broadcast(tensor: Tensor, in_place: bool, root_rank: int, name: str | None, process_set: ProcessSet) -> int:
    key = key_of("broadcast", name, process_set)
    source, (address, shape, dtype) = input_of("broadcast", key, tensor, process_set)
    root_rank = root_of(key, root_rank, process_set)
    output = torch.empty_like(tensor) if source is tensor and not in_place else source
    number, stream = number_of(process_set), stream_of(source)
    handle = _core.enqueue_broadcast(number, key, address, output.data_ptr(), shape, dtype, root_rank, False, stream)
    return keep(handle, (tensor, output), _put_back if in_place else _returned, source, stream)


def _returned(result: tuple[Tensor, Tensor], _: None) -> Tensor:
    return back_to(*result)


def _returned_group(result: tuple[Sequence[Tensor], Sequence[Tensor]], _: None) -> list[Tensor]:
    return [back_to(tensor, output) for tensor, output in zip(*result)]


def _returned_tuple(result: tuple[Sequence[Tensor], Sequence[Tensor]], _: None) -> tuple[Tensor, ...]:
    return tuple(_returned_group(result, None))


def _put_back(result: tuple[Tensor, Tensor], _: None) -> Tensor:
    tensor, output = result
    if output is not tensor:
        with torch.no_grad():
            tensor.copy_(output)
    return tensor


def _put_back_group(result: tuple[Sequence[Tensor], Sequence[Tensor]], _: None) -> tuple[Tensor, ...]:
    return tuple(_put_back(pair, None) for pair in zip(*result))


def _gathered(result: tuple[Tensor, Tensor | None], answer: list[tuple[Any, Sequence[int]]]) -> Tensor:
    return wrap(*result, *answer[0])


def _gathered_group(
    result: tuple[Sequence[Tensor], Sequence[Tensor | None]], answer: list[tuple[Any, Sequence[int]]]
) -> list[Tensor]:
    return [wrap(tensor, room, memory, shape) for tensor, room, (memory, shape) in zip(*result, answer)]


def _exchanged(
    result: tuple[Tensor, Tensor | None, Any], answer: tuple[Any, Sequence[int], list[int]]
) -> tuple[Tensor, Tensor]:
    tensor, room, place = result
    memory, shape, received = answer
    return wrap(tensor, room, memory, shape), torch.tensor(received, dtype=torch.int32, device=place)
