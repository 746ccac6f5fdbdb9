"""Collectives on arrays in the host's memory, called from Python: the way of what cannot be compiled for a CPU.

That is programs for other devices, which call back here, and results whose size only the exchange can tell. The plug-in
library (``crates/jax``) asks the engine for the same things in the same way, so ranks may differ in the way they take.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde import _core
from ronde.jax.collectives import (
    Allgather,
    Allreduce,
    Alltoall,
    Barrier,
    Broadcast,
    Collective,
    Reducescatter,
    Reduction,
)
from ronde.jax.elements import engine_type

__all__ = ["gather", "run", "send_rows"]


class _Memory:
    """An array as the engine takes it."""

    def __init__(self, array: np.ndarray[Any, Any], call: Collective) -> None:
        name, parts = engine_type(array.dtype, call)
        self.array = array
        self.shape = (*array.shape, parts) if parts > 1 else array.shape
        self.dtype = _core.dtype_code(name)
        self.address = array.ctypes.data


def run(call: Collective, name: str, *operands: Any) -> list[Any]:
    """Do a collective of a compiled program, whose results have the shapes it was compiled for."""
    arrays = [np.ascontiguousarray(operand).reshape(np.shape(operand)) for operand in operands]
    _check_members(call, name)
    results = [np.empty(result.shape, result.dtype) for result in call.results(arrays)]
    if isinstance(call, Allgather):
        gathered, rows = gather(call, name, arrays[0])
        _expect(call.rows, rows, name)
        return [gathered]
    if isinstance(call, Alltoall):
        received, rows = send_rows(call, name, arrays[0])
        _expect(call.rows, rows, name)
        return [received]
    sources = [_Memory(array, call) for array in arrays]
    targets = [_Memory(array, call) for array in results]
    return _wait(_start(call, name, sources, targets), results, sources, targets)


def _wait(handle: int, result: Any, *arrays: Any) -> Any:
    """Wait for an operation, whose arrays stay alive until it has ended, even if a signal ends the wait before."""
    finish = None if result is not None else lambda _, found: found
    return _core.synchronize(_core.keep(handle, result, finish, arrays))


def _start(call: Collective, name: str, sources: list[_Memory], targets: list[_Memory]) -> int:
    tensors = [(source.address, target.address, source.shape, source.dtype) for source, target in zip(sources, targets)]
    if isinstance(call, Barrier):
        return _core.enqueue_barrier(call.process_set, name, True)
    if isinstance(call, Broadcast):
        return _core.enqueue_broadcast(call.process_set, name, *tensors[0], call.root, True)
    assert isinstance(call, Reduction)
    terms = (call.op, call.prescale, call.postscale)
    if isinstance(call, Reducescatter):
        return _core.enqueue_reducescatter(call.process_set, name, tensors, *terms, False, True)
    if isinstance(call, Allreduce) and call.grouped:
        return _core.enqueue_grouped_allreduce(call.process_set, name, tensors, *terms, 0, True)
    return _core.enqueue_allreduce(call.process_set, name, *tensors[0], *terms, 0, True)


def gather(call: Collective, name: str, array: np.ndarray[Any, Any]) -> tuple[Any, list[int]]:
    """Join the rows of all members, which may differ in number; return them, and how many each has given."""
    own = np.array([len(array)], np.int64)
    count, source = _Memory(own, call), _Memory(array, call)
    tensors = [(count.address, count.shape, count.dtype), (source.address, source.shape, source.dtype)]
    counts, rows = _wait(_core.enqueue_allgather(call.process_set, name, tensors, True, True), None, count, source)
    return _adopt(rows[0], rows[1], array), _adopt(counts[0], counts[1], own).tolist()


def send_rows(call: Alltoall, name: str, array: np.ndarray[Any, Any]) -> tuple[Any, list[int]]:
    """Send each member its rows; return those received, and how many came from each."""
    source = _Memory(array, call)
    handle = _core.enqueue_alltoall(
        call.process_set, name, source.address, source.shape, source.dtype, list(call.rows), True
    )
    capsule, shape, received = _wait(handle, None, source)
    return _adopt(capsule, shape, array), list(received)


class _Exporter:
    """Gives a capsule to NumPy, which asks for one in this way."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _adopt(capsule: Any, shape: Any, like: np.ndarray[Any, Any]) -> Any:
    """Make an array of the engine's memory, with elements as those of another array."""
    shape = (shape[0], *like.shape[1:])
    if capsule is None:
        return np.empty(shape, like.dtype)
    return np.from_dlpack(_Exporter(capsule)).view(like.dtype).reshape(shape)


def _check_members(call: Collective, name: str) -> None:
    """Refuse to run if the process set is another than when the program was traced: the engine would write too much."""
    if isinstance(call, (Allgather, Alltoall, Reducescatter)):
        members = dict(_core.process_sets()).get(call.process_set, [])
        moved = isinstance(call, Reducescatter) and members[call.position : call.position + 1] != [_core.place()[0]]
        if len(members) != len(call.rows) or moved:
            raise ValueError(
                f"{name!r} was compiled for another process set than {members}, of {len(call.rows)} ranks; call "
                f"jax.clear_caches() after a change"
            )


def _expect(compiled: tuple[int, ...], found: list[int], name: str) -> None:
    if found != list(compiled):
        raise ValueError(
            f"the ranks have {found} rows for {name!r}, but this program was compiled for {list(compiled)}; outside "
            f"of jax.jit they may differ"
        )
