"""The collectives, as JAX users call them: outside of functions and inside, under every transformation.

A call of a traced function has fixed shapes, so there every rank gives as many rows as the others. Outside, allgather
and alltoall take any, since they can look at the exchange before they make an array.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ronde import _core
from ronde._collectives import Average, Sum
from ronde.jax import _effects, host
from ronde.jax.arguments import is_traced, key_of, number_of, place_of, reduction, splits_of, with_rows
from ronde.jax.collectives import Allgather, Allreduce, Alltoall, Barrier, Broadcast, Reducescatter
from ronde.jax.elements import engine_type
from ronde.jax.primitive import do
from ronde.process_sets import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allreduce",
    "join",
    "reducescatter",
]

# What unnamed collectives outside of a program are called, as those inside of one are in `_effects`.
_EAGER = "jax.eager.0"


def allreduce(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """Reduce the arrays of all ranks, element by element, and return the result on each.

    ``op`` is one of Average, Sum, Adasum, Min, Max and Product. Elements are multiplied by ``prescale_factor`` before
    and by ``postscale_factor`` after. Average and Sum have derivatives: a cotangent is reduced in the same way.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.allreduce(jnp.array([1.0, 2.0]), op=hvd.Sum).tolist()
    [1.0, 2.0]
    """
    array = jnp.asarray(tensor)
    factors = {"prescale": float(prescale_factor), "postscale": float(postscale_factor)}
    call = Allreduce(
        key_of("allreduce", name), number_of(process_set), op=reduction(op, process_set), **factors, grouped=False
    )
    engine_type(array.dtype, call)
    return do(call, [array])[0]


def grouped_allreduce(
    tensors: Any,
    op: int = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce all arrays of a list, or of any other tree, in one call, and return a tree of the same structure.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> sums = hvd.grouped_allreduce({"w": jnp.ones(2), "b": jnp.zeros(())}, op=hvd.Sum)
    >>> sums["w"].tolist(), sums["b"].tolist()
    ([1.0, 1.0], 0.0)
    """
    leaves, structure = jax.tree.flatten(tensors)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    factors = {"prescale": float(prescale_factor), "postscale": float(postscale_factor)}
    call = Allreduce(
        key_of("allreduce", name), number_of(process_set), op=reduction(op, process_set), **factors, grouped=True
    )
    for array in arrays:
        engine_type(array.dtype, call)
    return jax.tree.unflatten(structure, do(call, arrays) if arrays else [])


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> jax.Array:
    """Join the arrays of all ranks along the first dimension.

    It may differ between ranks outside of traced functions; inside, all have to give as many rows. A scalar is one row.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.allgather(jnp.zeros((2, 3))).shape
    (2, 3)
    """
    array = jnp.atleast_1d(jnp.asarray(tensor))
    members, position = place_of(process_set)
    rows = (array.shape[0],) * members
    call = Allgather(key_of("allgather", name), number_of(process_set), rows=rows, position=position)
    engine_type(array.dtype, call)
    if is_traced(array):
        return do(call, [array])[0]
    _effects.settle()
    gathered, _ = host.gather(call, call.name or _EAGER, np.asarray(array))
    return jnp.asarray(gathered)


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> jax.Array:
    """Return the root's array on every rank; the others' give the shape and the type.

    ``root_rank`` counts in the job, also where a process set is given.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.broadcast(jnp.array([7, 8]), root_rank=0).tolist()
    [7, 8]
    """
    array = jnp.asarray(tensor)
    number = number_of(process_set)
    if root_rank not in (process_set.ranks or ()):
        raise ValueError(f"root_rank {root_rank} is not in {process_set}")
    is_root = _core.place()[0] == root_rank
    call = Broadcast(key_of("broadcast", name), number, root=int(root_rank), is_root=is_root)
    engine_type(array.dtype, call)
    return do(call, [array])[0]


def alltoall(
    tensor: Any,
    splits: Sequence[int] | Any | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank and return those received, in the order of the ranks they come from.

    ``splits`` says how many rows go to each rank; the result is then a pair of the rows and how many came from each.
    That is for calls outside of traced functions. Without it every rank gets the same number, and the rows alone are
    returned.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> rows, received = hvd.alltoall(jnp.arange(3), splits=[3])
    >>> rows.tolist(), received.tolist()
    ([0, 1, 2], [3])
    """
    array = with_rows(tensor, "alltoall")
    members, _ = place_of(process_set)
    sent = splits_of(splits, array, members)
    call = Alltoall(key_of("alltoall", name), number_of(process_set), rows=sent)
    engine_type(array.dtype, call)
    if splits is None:
        return do(call, [array])[0]
    _effects.settle()
    received, rows = host.send_rows(call, call.name or _EAGER, np.asarray(array))
    return jnp.asarray(received), jnp.asarray(rows, jnp.int32)


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """Reduce as ``allreduce`` does, by Average or Sum, and return this rank's share of the rows.

    Rows are dealt in order; where they do not divide evenly, the first ranks get one more.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.reducescatter(jnp.ones((4, 2)), op=hvd.Sum).shape
    (4, 2)
    """
    array = with_rows(tensor, "reducescatter")
    if op not in (Average, Sum):
        raise ValueError(f"reducescatter knows Average and Sum, not {op!r}")
    members, position = place_of(process_set)
    each, more = divmod(array.shape[0], members)
    call = Reducescatter(
        key_of("reducescatter", name),
        number_of(process_set),
        op=op,
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
        rows=tuple(each + (member < more) for member in range(members)),
        position=position,
    )
    engine_type(array.dtype, call)
    return do(call, [array])[0]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank is here and has done all collectives before this; in a traced function, do so there.

    It is also where ranks meet again after a failure: that of a program is told where its results are asked for, not
    here.

    >>> import ronde.jax as hvd
    >>> hvd.init(); hvd.barrier()
    """
    number = number_of(process_set)
    with contextlib.suppress(Exception):
        _effects.settle()
    do(Barrier(None, number), [])
    _effects.settle()


def join() -> int:
    """Say that this rank has no more data, and take part in what the others do until they have none; return the last.

    Not for traced functions: their collectives have a place among others, and nobody knows for how long this lasts.

    >>> import ronde.jax as hvd
    >>> hvd.init(); hvd.join()
    0
    """
    _effects.settle()
    last: int = _core.wait(_core.enqueue_join("join.jax", True))
    return last
