"""The collectives on arrays: blocking, and without names, so every rank calls the same ones in the same order.

What an array is and what kind comes back is the business of :mod:`ronde._arrays`; what the ranks do with the elements
is the engine's, which matches calls by the names that are counted up here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

from ronde import _arrays, _core

Array = TypeVar("Array")

# The reductions, by Horovod's numbers.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

# All ranks make the same calls in the same order, so a call's number is its name. The operation is not part of it:
# ranks whose fifth call differs should hear so, not wait for each other.
_calls = itertools.count(1)

# The arrays of operations that are still in flight because a signal handler ended the wait for them.
_abandoned: list[tuple[_arrays.View, ...]] = []


def _name() -> str:
    return f"array.noname.{next(_calls)}"


def _wait(handle: int, *arrays: _arrays.View) -> Any:
    """Wait for an operation, whose arrays stay alive until it has ended, even if the wait ends before."""
    try:
        return _core.wait(handle)
    except BaseException:
        if not _core.poll(handle):
            _abandoned.append(arrays)
        raise


def allreduce(tensor: Any, op: int = Average, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Any:
    """Reduce the arrays of all ranks, element by element, and return the result on each.

    Elements are multiplied by ``prescale_factor`` before and by ``postscale_factor`` after the reduction. An average
    of integers is the exact quotient, truncated toward zero.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> ronde.allreduce(numpy.array([1, 2]), op=ronde.Sum).tolist()
    [1, 2]
    """
    source = _arrays.readable(tensor)
    result = _arrays.empty(source, source.shape)
    _allreduce(source, result, op, prescale_factor, postscale_factor)
    return result.holder


def allreduce_(tensor: Array, op: int = Average, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Array:
    """Reduce as ``allreduce`` does, in place: the array itself holds the result afterwards, and is returned.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> gradient = numpy.ones(3)
    >>> ronde.allreduce_(gradient) is gradient
    True
    """
    view = _arrays.writable(tensor, "allreduce_")
    _allreduce(view, view, op, prescale_factor, postscale_factor)
    return tensor


def _allreduce(source: _arrays.View, result: _arrays.View, op: int, prescale: float, postscale: float) -> None:
    handle = _core.enqueue_allreduce(
        0,
        _name(),
        source.address,
        result.address,
        source.shape,
        source.dtype,
        op,
        prescale,
        postscale,
        0,
        True,
    )
    _wait(handle, source, result)


def allgather(tensor: Any) -> Any:
    """Join the arrays of all ranks along the first dimension, which may differ between ranks.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> ronde.allgather(numpy.zeros((2, 3))).shape
    (2, 3)
    """
    source = _arrays.readable(tensor)
    shape = source.shape or (1,)
    handle = _core.enqueue_allgather(0, _name(), [(source.address, shape, source.dtype)], False, True)
    [(capsule, shape)] = _wait(handle, source)
    return _arrays.adopt(source, capsule, shape)


def broadcast(tensor: Any, root_rank: int) -> Any:
    """Return the root's array on every rank; the others' give the shape and the type.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> ronde.broadcast(numpy.array([7, 8]), root_rank=0).tolist()
    [7, 8]
    """
    source = _arrays.readable(tensor)
    result = _arrays.empty(source, source.shape)
    _broadcast(source, result, root_rank)
    return result.holder


def broadcast_(tensor: Array, root_rank: int) -> Array:
    """Overwrite the array with the root's, and return it.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> weights = numpy.zeros(3)
    >>> ronde.broadcast_(weights, root_rank=0) is weights
    True
    """
    view = _arrays.writable(tensor, "broadcast_")
    _broadcast(view, view, root_rank)
    return tensor


def _broadcast(source: _arrays.View, result: _arrays.View, root_rank: int) -> None:
    size = _core.rank_and_size()[1]
    name = _name()
    if not 0 <= root_rank < size:
        raise _fault("broadcast", name, f"root_rank {root_rank} is not a rank of this job, which has {size}")
    handle = _core.enqueue_broadcast(0, name, source.address, result.address, source.shape, source.dtype, root_rank)
    _wait(handle, source, result)


def reducescatter(tensor: Any, op: int = Average, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Any:
    """Reduce as ``allreduce`` does and return this rank's share of the rows.

    Rows are dealt in order; where they do not divide evenly, the first ranks get one more.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> ronde.reducescatter(numpy.ones((4, 2)), op=ronde.Sum).shape
    (4, 2)
    """
    source = _arrays.readable(tensor)
    name = _name()
    if not source.shape:
        raise _fault("reducescatter", name, "reducescatter needs rows to share out, but this array has no dimensions")
    rank, size = _core.rank_and_size()
    each, more = divmod(source.rows, size)
    result = _arrays.empty(source, (each + (rank < more), *source.shape[1:]))
    tensors = [(source.address, result.address, source.shape, source.dtype)]
    handle = _core.enqueue_reducescatter(0, name, tensors, op, prescale_factor, postscale_factor, False, True)
    _wait(handle, source, result)
    return result.holder


def alltoall(tensor: Any, splits: Sequence[int] | None = None) -> Any:
    """Send rows to every rank and return those received, in the order of the ranks they come from.

    ``splits`` says how many rows go to each rank; the result is then a pair of the rows and how many came from each.
    Without it every rank gets the same number, and the rows alone are returned.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> rows, received = ronde.alltoall(numpy.arange(3), splits=[3])
    >>> rows.tolist(), received.tolist()
    ([0, 1, 2], [3])
    """
    source = _arrays.readable(tensor)
    name = _name()
    if not source.shape:
        raise _fault("alltoall", name, "alltoall needs rows to send, but this array has no dimensions")
    try:
        sent = _splits(splits, source.rows, _core.rank_and_size()[1])
    except ValueError as error:
        raise _fault("alltoall", name, str(error)) from None
    handle = _core.enqueue_alltoall(0, name, source.address, source.shape, source.dtype, sent, True)
    capsule, shape, received = _wait(handle, source)
    result = _arrays.adopt(source, capsule, shape)
    return result if splits is None else (result, _arrays.integers(source, received))


def barrier() -> None:
    """Wait until every rank is here.

    >>> import ronde
    >>> ronde.init(); ronde.barrier()
    """
    _core.wait(_core.enqueue_barrier(0, _name(), True))


def _fault(operation: str, name: str, message: str) -> ValueError:
    """Tell the other ranks, which are about to wait for this one, that its arguments are wrong."""
    _core.enqueue_fault(0, operation, name, message)
    return ValueError(message)


def _splits(splits: Sequence[int] | None, rows: int, size: int) -> list[int]:
    if splits is None:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be shared out evenly over {size} ranks; say how with splits")
        return [rows // size] * size
    sent = [int(count) for count in splits]
    if len(sent) != size:
        raise ValueError(f"splits has {len(sent)} entries, but the job has {size} ranks")
    if min(sent) < 0 or sum(sent) != rows:
        raise ValueError(f"splits {sent} do not add up to the {rows} rows of the array")
    return sent
