"""The collectives: blocking, without names, straight onto the engine.

Every rank calls the same ones in the same order. What an array is and what kind comes back is the business of
:mod:`ronde._arrays`; what the ranks do with the elements is the engine's.
"""

from __future__ import annotations

import os
import threading
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

# Threads take turns: some collectives speak to the other ranks twice, and nothing may come in between. Waiting for a
# turn here and not in the engine also lets the main thread answer Ctrl-C.
_turn = threading.Lock()


def _renew_turn() -> None:
    """Forget a turn that a thread of the parent process held when this one was forked."""
    global _turn
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_renew_turn)


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
    with _turn:
        _core.allreduce(
            source.address, result.address, source.elements, source.dtype, op, prescale_factor, postscale_factor
        )
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
    with _turn:
        _core.allreduce(view.address, view.address, view.elements, view.dtype, op, prescale_factor, postscale_factor)
    return tensor


def allgather(tensor: Any) -> Any:
    """Join the arrays of all ranks along the first dimension, which may differ between ranks.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> ronde.allgather(numpy.zeros((2, 3))).shape
    (2, 3)
    """
    source = _arrays.readable(tensor)
    row = source.row_elements
    with _turn:
        rows = _core.gather_counts(source.dtype, row, source.rows)
        result = _arrays.empty(source, (sum(rows), *source.shape[1:]))
        counts = [count * row for count in rows]
        _core.allgather(source.address, result.address, source.dtype, counts, _core.rank_and_size()[0])
    return result.holder


def broadcast(tensor: Any, root_rank: int) -> Any:
    """Return the root's array on every rank; the others' give the shape and the type.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> ronde.broadcast(numpy.array([7, 8]), root_rank=0).tolist()
    [7, 8]
    """
    source = _arrays.readable(tensor)
    result = _arrays.empty(source, source.shape)
    with _turn:
        _core.broadcast(source.address, result.address, source.elements, source.dtype, _root(root_rank))
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
    with _turn:
        _core.broadcast(view.address, view.address, view.elements, view.dtype, _root(root_rank))
    return tensor


def reducescatter(tensor: Any, op: int = Average, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Any:
    """Reduce as ``allreduce`` does and return this rank's share of the rows.

    Rows are dealt in order; where they do not divide evenly, the first ranks get one more.

    >>> import numpy, ronde
    >>> ronde.init()
    >>> ronde.reducescatter(numpy.ones((4, 2)), op=ronde.Sum).shape
    (4, 2)
    """
    source = _arrays.readable(tensor)
    if not source.shape:
        raise ValueError("reducescatter needs rows to share out, but this array has no dimensions")
    rank, size = _core.rank_and_size()
    each, more = divmod(source.rows, size)
    rows = [each + (other < more) for other in range(size)]
    result = _arrays.empty(source, (rows[rank], *source.shape[1:]))
    with _turn:
        _core.reducescatter(
            source.address,
            result.address,
            source.dtype,
            rows,
            rank,
            source.row_elements,
            op,
            prescale_factor,
            postscale_factor,
        )
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
    if not source.shape:
        raise ValueError("alltoall needs rows to send, but this array has no dimensions")
    sent = _splits(splits, source.rows, _core.rank_and_size()[1])
    row = source.row_elements
    with _turn:
        received = _core.alltoall_counts(source.dtype, row, sent)
        result = _arrays.empty(source, (sum(received), *source.shape[1:]))
        _core.alltoall(
            source.address,
            result.address,
            source.dtype,
            [rows * row for rows in sent],
            [rows * row for rows in received],
        )
    return result.holder if splits is None else (result.holder, _arrays.integers(source, received))


def barrier() -> None:
    """Wait until every rank is here.

    >>> import ronde
    >>> ronde.init(); ronde.barrier()
    """
    with _turn:
        _core.barrier()


def _root(rank: int) -> int:
    size = _core.rank_and_size()[1]
    if not 0 <= rank < size:
        raise ValueError(f"root_rank {rank} is not a rank of this job, which has {size}")
    return rank


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
