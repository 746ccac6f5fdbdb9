"""Bringing every rank to the same state: trees of arrays, and any object.

Arrays are immutable, so nothing is overwritten: these functions return the root's state. Objects are pickled, by
``cloudpickle`` where it is installed. Nothing is unpickled but what a rank of the same job has sent.
"""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ronde import _core
from ronde.jax import _effects, host
from ronde.jax.arguments import number_of
from ronde.jax.collectives import Allgather, Broadcast
from ronde.jax.ops import broadcast
from ronde.process_sets import ProcessSet, global_process_set

try:
    from cloudpickle import dumps
except ImportError:
    from pickle import dumps

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
    is_root = _core.place()[0] == root_rank
    data = _pickled(obj) if is_root else np.empty(0, np.uint8)
    length = _broadcast_bytes(np.array([len(data)], np.int64), root_rank, f"{name or 'object'}.sz", process_set)
    if not is_root:
        data = np.empty(int(length[0]), np.uint8)
    data = _broadcast_bytes(data, root_rank, f"{name or 'object'}.t", process_set)
    return obj if is_root else pickle.loads(data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks as a list, by rank.

    >>> import ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.allgather_object("mine")
    ['mine']
    """
    call = Allgather(None, number_of(process_set), rows=(), position=0)
    _effects.settle()
    gathered, lengths = host.gather(call, f"allgather.{name or 'object'}", _pickled(obj))
    ends = np.cumsum([0, *lengths])
    return [pickle.loads(gathered[start:end]) for start, end in zip(ends, ends[1:])]


def _pickled(obj: Any) -> Any:
    return np.frombuffer(dumps(obj), np.uint8)


def _broadcast_bytes(data: Any, root_rank: int, name: str, process_set: ProcessSet) -> Any:
    call = Broadcast(None, number_of(process_set), root=root_rank, is_root=_core.place()[0] == root_rank)
    _effects.settle()
    return host.run(call, f"broadcast.{name}", data)[0]
