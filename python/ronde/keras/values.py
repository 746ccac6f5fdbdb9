"""Collectives on values: numbers, lists, arrays and tensors go in, NumPy comes out, on every rank."""

from __future__ import annotations

from typing import Any

from ronde._collectives import Average, Sum
from ronde.keras import arrays
from ronde.keras.compression import Compression
from ronde.keras.flavours import to_numpy, to_tensor

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def allreduce(
    value: Any,
    name: str | None,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
    op: int | None,
    compression: Any,
) -> Any:
    """Reduce a value over all ranks; ``average`` is the old way to choose Average or Sum."""
    if op is None:
        op = Average if average or average is None else Sum
    elif average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    array = to_numpy(value)
    if compression is Compression.none:
        # Not by way of a tensor, which may not have the precision of the value.
        return arrays.allreduce(array, name, op, prescale_factor, postscale_factor)[()]
    packed, context = compression.compress(to_tensor(array))
    result = arrays.allreduce(to_numpy(packed), name, op, prescale_factor, postscale_factor)
    return to_numpy(compression.decompress(to_tensor(result), context))[()]


def allgather(value: Any, name: str | None = None) -> Any:
    """Join the values of all ranks along the first dimension, which may differ between ranks.

    >>> import horovod.keras as hvd
    >>> hvd.init()
    >>> hvd.allgather([1, 2]).tolist()
    [1, 2]
    """
    return arrays.allgather(to_numpy(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the root's value.

    >>> import horovod.keras as hvd
    >>> hvd.init()
    >>> int(hvd.broadcast(7, root_rank=0))
    7
    """
    return arrays.broadcast(to_numpy(value), root_rank, name)[()]


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduce a value and return this rank's share of the rows.

    >>> import horovod.keras as hvd
    >>> hvd.init()
    >>> hvd.reducescatter([1.0, 2.0], op=hvd.Sum).tolist()
    [1.0, 2.0]
    """
    return arrays.reducescatter(to_numpy(value), name, op)
