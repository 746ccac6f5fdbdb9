"""Bringing every rank to the same state: trees of arrays, and any object.

Arrays are immutable, so nothing is overwritten: these functions return the root's state. Objects go straight to the
engine (:mod:`ronde._objects`), after what was started before has settled.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ronde import _objects
from ronde.jax import _effects
from ronde.jax.ops import broadcast
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the root's tree of arrays on every rank; the others' give structure, shapes and types.

    Leaves may be arrays, keys of random generators, and Python's numbers, which stay such.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.broadcast_parameters({"w": jnp.ones(2), "step": 3})["step"]
    3
    """
    return jax.tree.map(lambda leaf: _broadcast_leaf(leaf, root_rank, process_set), params)


def broadcast_optimizer_state(state: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the root's optimizer state on every rank; it is a tree as parameters are.

    >>> import jax.numpy as jnp, optax, ronde.jax as hvd
    >>> hvd.init()
    >>> state = hvd.broadcast_optimizer_state(optax.adam(0.1).init(jnp.ones(2)))
    """
    return broadcast_parameters(state, root_rank, process_set)


def _broadcast_leaf(leaf: Any, root_rank: int, process_set: ProcessSet) -> Any:
    if isinstance(leaf, (bool, int, float, complex)):
        return type(leaf)(broadcast_object(leaf, root_rank, process_set=process_set))
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = broadcast(jax.random.key_data(leaf), root_rank, process_set=process_set)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return broadcast(leaf, root_rank, process_set=process_set)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank.

    >>> import ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.broadcast_object({"epoch": 3})
    {'epoch': 3}
    """
    _effects.settle()
    return _objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks as a list, by rank.

    >>> import ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.allgather_object("mine")
    ['mine']
    """
    _effects.settle()
    return _objects.allgather_object(obj, name, process_set)
