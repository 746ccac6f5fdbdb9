"""What a collective checks and finds out about its arguments before it is made part of a program."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.core import Tracer

from ronde import _core
from ronde._collectives import Adasum, Average, Max, Min, Product, Sum
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["is_traced", "key_of", "number_of", "place_of", "reduction", "splits_of", "with_rows"]


def key_of(kind: str, name: str | None) -> str | None:
    """Return the name under which ranks match a collective that was given one."""
    return None if name is None else f"{kind}.{name}"


def number_of(process_set: ProcessSet) -> int:
    """Return the number of a process set that this rank is in."""
    # Outside of a job this says so.
    rank = _core.place()[0]
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered; give it to hvd.init() or to hvd.add_process_set()")
    if not process_set.included():
        raise ValueError(f"rank {rank} is not in {process_set}")
    return process_set.process_set_id


def place_of(process_set: ProcessSet) -> tuple[int, int]:
    """Return the number of members of a process set, and this rank's place among them."""
    number_of(process_set)
    return process_set.size() or 0, process_set.rank()


def reduction(op: int, process_set: ProcessSet) -> int:
    """Return a reduction, if there is such a one and it can be done."""
    if op not in (Average, Sum, Adasum, Min, Max, Product):
        raise ValueError(f"op is one of Average, Sum, Adasum, Min, Max and Product, not {op!r}")
    if op == Adasum:
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum works on all ranks; it does not take a process set")
        size = process_set.size() or 1
        if size & (size - 1):
            raise NotImplementedError(f"Adasum needs a power of 2 ranks; this job has {size}")
    return op


def is_traced(value: Any) -> bool:
    """Tell whether a value is only known when the program runs."""
    return isinstance(value, Tracer)


def with_rows(tensor: Any, operation: str) -> Any:
    """Return an array that has rows to deal with."""
    array = jnp.asarray(tensor)
    if array.ndim == 0:
        raise ValueError(f"{operation} needs rows, but this array has no dimensions")
    return array


def splits_of(splits: Any, array: Any, members: int) -> tuple[int, ...]:
    """Return how many rows go to each member: as many as asked for, or equally many."""
    rows = array.shape[0]
    if splits is None:
        if rows % members:
            raise ValueError(f"{rows} rows cannot be shared out evenly over {members} ranks; say how with splits")
        return (rows // members,) * members
    if is_traced(array) or is_traced(splits):
        raise ValueError(
            "alltoall with splits has a result of unknown size, which a traced function cannot have; call it outside "
            "of jax.jit, or make the splits equal and leave them out"
        )
    sent = tuple(int(count) for count in splits)
    if len(sent) != members:
        raise ValueError(f"splits has {len(sent)} entries, but the process set has {members} ranks")
    if min(sent) < 0 or sum(sent) != rows:
        raise ValueError(f"splits {list(sent)} do not add up to the {rows} rows of the array")
    return sent
