"""The collectives on arrays of MXNet.

All but three are operations of MXNet like any other: they return at once, run in order with what is computed on the
same arrays, and an error is raised where somebody waits for the result. ``allgather``, ``grouped_allgather`` and
``alltoall`` wait, because only the other ranks know how large the result is.

Every rank has to call the same collectives. Ranks find each other's by their names; those without a name are counted.
``priority`` is MXNet's: of what is ready, the highest goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from ronde import _core
from ronde._collectives import Average, Product
from ronde.mxnet.arguments import (
    check_type,
    group_of,
    key_of,
    number_of,
    reduction,
    refuse,
    root_of,
    rows_of,
    splits_of,
)
from ronde.mxnet.engine import ALLREDUCE, BROADCAST, REDUCESCATTER, push
from ronde.mxnet.errors import as_mxnet_raises
from ronde.mxnet.memory import address_of, back_to, empty, filled, overwrite, reachable
from ronde.process_sets import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduce the arrays of all ranks, element by element, and return a new array.

    Elements are multiplied by ``prescale_factor`` before and by ``postscale_factor`` after the reduction, which is
    Average unless ``op`` says otherwise. ``average`` is the old way to choose between Average and Sum.

    >>> import mxnet as mx, horovod.mxnet as hvd
    >>> hvd.init()
    >>> hvd.allreduce(mx.nd.array([1, 2]), op=hvd.Sum).asnumpy().tolist()
    [1.0, 2.0]
    """
    op = reduction(op, average, process_set)
    return _allreduce([tensor], False, False, name, op, prescale_factor, postscale_factor, process_set, priority)[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduce as ``allreduce`` does, in place, and return the array itself."""
    op = reduction(op, average, process_set)
    return _allreduce([tensor], True, False, name, op, prescale_factor, postscale_factor, process_set, priority)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduce several arrays, which travel together, and return a list of new ones."""
    op = reduction(op, average, process_set)
    return _allreduce(tensors, False, True, name, op, prescale_factor, postscale_factor, process_set, priority)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduce several arrays in place, together, and return them as a list."""
    op = reduction(op, average, process_set)
    return _allreduce(tensors, True, True, name, op, prescale_factor, postscale_factor, process_set, priority)


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Join the arrays of all ranks along the first dimension, which may differ between ranks. Waits for the result.

    ``priority`` is accepted for scripts that pass it: what is waited for does not stand in MXNet's queue.
    """
    del priority
    return _allgather([tensor], False, name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Join several arrays, each with its like on the other ranks, as ``allgather`` does; returns a list."""
    del priority
    return _allgather(tensors, True, name, process_set)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's array on every rank, as a new one; the others' give shape and type.

    ``root_rank`` is a rank of the job, also where a process set is given.
    """
    return _broadcast(tensor, False, root_rank, name, process_set, priority)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite the array with the root's, and return it."""
    return _broadcast(tensor, True, root_rank, name, process_set, priority)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank, and return those received, in the order of the ranks they come from. Waits for them.

    ``splits`` says how many rows go to each rank, as an array of int32 or a list; the result is then a pair of the rows
    and how many came from each rank, as an array of int32. Without it every rank gets the same number, and the rows
    alone are returned.

    >>> import mxnet as mx, horovod.mxnet as hvd
    >>> hvd.init()
    >>> rows, received = hvd.alltoall(mx.nd.arange(3), splits=[3])
    >>> rows.asnumpy().tolist(), received.asnumpy().tolist()
    ([0.0, 1.0, 2.0], [3])
    """
    del priority
    number, key = number_of(process_set), key_of("alltoall", name, process_set)
    dtype = check_type("alltoall", key, tensor, process_set)
    counts = splits_of(key, tensor, splits, process_set)
    source = reachable(tensor)
    address = _computed("alltoall", key, [source], process_set)[0]
    with as_mxnet_raises():
        handle = _core.enqueue_alltoall(number, key, address, source.shape, dtype, counts, True)
        capsule, shape, received = _answer(handle, source)
    result = back_to(tensor, filled(source, capsule, shape))
    return result if splits is None else (result, back_to(tensor, mx.nd.array(received, dtype="int32")))


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce (Average or Sum) and return this rank's share of the rows.

    Rows are dealt in order; where they do not divide evenly, the first ranks get one more.
    """
    return _reducescatter([tensor], False, op, name, priority, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Do ``reducescatter`` with several arrays, which travel together; returns a list."""
    return _reducescatter(tensors, True, op, name, priority, process_set, prescale_factor, postscale_factor)


def _allreduce(
    tensors: Sequence[Any],
    in_place: bool,
    grouped: bool,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
) -> list[Any]:
    number, key = number_of(process_set), key_of("grouped_allreduce" if grouped else "allreduce", name, process_set)
    tensors = group_of(tensors)
    if not Average <= op <= Product:
        refuse("allreduce", key, process_set, f"no reduction has the number {op}", len(tensors))
    for tensor in tensors:
        check_type("allreduce", key, tensor, process_set, len(tensors))
    inputs = [reachable(tensor) for tensor in tensors]
    outputs = _outputs(tensors, inputs, in_place)
    push(ALLREDUCE, key, number, inputs, outputs, grouped, op, prescale, postscale, priority=priority)
    return _results(tensors, outputs, in_place)


def _broadcast(
    tensor: Any, in_place: bool, root_rank: int, name: str | None, process_set: ProcessSet, priority: int
) -> Any:
    number, key = number_of(process_set), key_of("broadcast", name, process_set)
    check_type("broadcast", key, tensor, process_set)
    root = root_of(key, root_rank, process_set)
    source = reachable(tensor)
    outputs = _outputs([tensor], [source], in_place)
    push(BROADCAST, key, number, [source], outputs, root=root, priority=priority)
    return _results([tensor], outputs, in_place)[0]


def _reducescatter(
    tensors: Sequence[Any],
    grouped: bool,
    op: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
) -> list[Any]:
    kind = "grouped_reducescatter" if grouped else "reducescatter"
    number, key = number_of(process_set), key_of(kind, name, process_set)
    tensors = group_of(tensors)
    for tensor in tensors:
        check_type("reducescatter", key, tensor, process_set, len(tensors))
    inputs = [reachable(tensor) for tensor in tensors]
    outputs = [empty(source, rows_of(key, source, op, process_set, len(inputs))) for source in inputs]
    push(REDUCESCATTER, key, number, inputs, outputs, grouped, op, prescale, postscale, priority=priority)
    return _results(tensors, outputs, False)


def _allgather(tensors: Sequence[Any], grouped: bool, name: str | None, process_set: ProcessSet) -> list[Any]:
    number, key = number_of(process_set), key_of("grouped_allgather" if grouped else "allgather", name, process_set)
    tensors = group_of(tensors)
    types = [check_type("allgather", key, tensor, process_set, len(tensors)) for tensor in tensors]
    sources = [reachable(tensor) for tensor in tensors]
    addresses = _computed("allgather", key, sources, process_set)
    entries = [(address, source.shape, dtype) for address, source, dtype in zip(addresses, sources, types)]
    with as_mxnet_raises():
        answer = _answer(_core.enqueue_allgather(number, key, entries, grouped, True), sources)
    return [
        back_to(tensor, filled(source, capsule, shape))
        for tensor, source, (capsule, shape) in zip(tensors, sources, answer)
    ]


def _outputs(tensors: Sequence[Any], inputs: Sequence[Any], in_place: bool) -> list[Any]:
    """Return where results go: what is not the argument itself is a copy, which may as well take the result."""
    return [
        source if in_place or source is not tensor else empty(source, source.shape)
        for tensor, source in zip(tensors, inputs)
    ]


def _results(tensors: Sequence[Any], outputs: Sequence[Any], in_place: bool) -> list[Any]:
    give = overwrite if in_place else back_to
    return [give(tensor, output) for tensor, output in zip(tensors, outputs)]


def _computed(kind: str, key: str, sources: Sequence[Any], process_set: ProcessSet) -> list[int]:
    """Wait until arrays are computed; if that fails, so does the operation on the other ranks."""
    try:
        return [address_of(source) for source in sources]
    except mx.MXNetError as error:
        try:
            refuse(kind, key, process_set, f"the array to send was not computed: {error}", len(sources))
        except ValueError:
            raise error from None


def _answer(handle: int, sources: Any) -> Any:
    """Wait for an operation, which keeps the arrays it reads even if the wait is interrupted."""
    return _core.synchronize(_core.keep(handle, None, lambda _, answer: answer, sources))
