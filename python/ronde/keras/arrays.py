"""Collectives by name on NumPy arrays, for what Keras keeps outside of the graph: values, metrics, variables.

They go straight to the engine, so they are the same whatever runs the model. Gradients do not come through here: they
are reduced by the operations of the framework, inside its graph (:mod:`ronde.keras.reduction`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ronde import _arrays, _core
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["allgather", "allreduce", "broadcast", "broadcast_all", "reducescatter"]


def allreduce(
    array: Any, name: str | None, op: int, prescale_factor: float = 1.0, postscale_factor: float = 1.0
) -> Any:
    """Reduce an array over all ranks."""
    source = _arrays.readable(array)
    result = _arrays.empty(source, source.shape)
    handle = _core.enqueue_allreduce(
        0,
        _key("allreduce", name),
        source.address,
        result.address,
        source.shape,
        source.dtype,
        op,
        prescale_factor,
        postscale_factor,
        0,
        True,
    )
    _core.keep(handle, result.holder, None, (source, result))
    return _core.synchronize(handle)


def allgather(array: Any, name: str | None) -> Any:
    """Join the arrays of all ranks along the first dimension."""
    source = _arrays.readable(array)
    handle = _core.enqueue_allgather(
        0, _key("allgather", name), [(source.address, source.shape or (1,), source.dtype)], False, True
    )

    def adopt(_: Any, found: Any) -> Any:
        [(capsule, shape)] = found
        return _arrays.adopt(source, capsule, shape)

    _core.keep(handle, None, adopt, source)
    return _core.synchronize(handle)


def broadcast(array: Any, root_rank: int, name: str | None) -> Any:
    """Return the root's array."""
    return broadcast_all([array], root_rank, [_key("broadcast", name)])[0]


def broadcast_all(
    arrays: Sequence[Any], root_rank: int, keys: Sequence[str], process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the root's arrays, all of which travel at once; ``keys`` are the whole names of the operations."""
    number = process_set.process_set_id
    members = process_set.ranks
    if number is None or members is None or root_rank not in members:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks of {process_set}")
    handles = []
    for array, key in zip(arrays, keys):
        source = _arrays.readable(array)
        result = _arrays.empty(source, source.shape)
        addresses = (source.address, result.address, source.shape, source.dtype)
        handle = _core.enqueue_broadcast(number, key, *addresses, root_rank)
        handles.append(_core.keep(handle, result.holder, None, (source, result)))
    return [_core.synchronize(handle) for handle in handles]


def reducescatter(array: Any, name: str | None, op: int) -> Any:
    """Reduce an array and return this rank's share of the rows."""
    source = _arrays.readable(array)
    key = _key("reducescatter", name)
    if not source.shape:
        message = "reducescatter needs rows to share out, but this value has no dimensions"
        _core.enqueue_fault(0, "reducescatter", key, message)
        raise ValueError(message)
    rank, size = _core.rank_and_size()
    each, more = divmod(source.rows, size)
    result = _arrays.empty(source, (each + (rank < more), *source.shape[1:]))
    tensors = [(source.address, result.address, source.shape, source.dtype)]
    handle = _core.enqueue_reducescatter(0, key, tensors, op, 1.0, 1.0, False, True)
    _core.keep(handle, result.holder, None, (source, result))
    return _core.synchronize(handle)


def _key(kind: str, name: str | None) -> str:
    """Return the name by which ranks match an operation; without one given, a number that all ranks count alike."""
    return f"{kind}.noname.{next(global_process_set.unnamed)}" if name is None else f"{kind}.{name}"
