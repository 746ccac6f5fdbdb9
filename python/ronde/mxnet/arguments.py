"""What an operation checks and finds out about its arguments before it is started.

An argument that is wrong on one rank only would leave the others waiting for it. So whoever refuses one tells the
engine as well, under the name of the operation (:func:`refuse`), and it fails everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import mxnet as mx

from ronde import _core
from ronde._collectives import Adasum, Average, Sum
from ronde.mxnet.errors import CollectiveError
from ronde.mxnet.memory import code_of
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["check_type", "group_of", "key_of", "number_of", "reduction", "refuse", "root_of", "rows_of", "splits_of"]


def reduction(op: int | None, average: bool | None, process_set: ProcessSet) -> int:
    """Settle which reduction is meant by ``op`` and its predecessor ``average``, and whether it can be done."""
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("average is deprecated; use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    if op is None:
        return Average
    if op == Adasum:
        _check_adasum(process_set)
    return op


def _check_adasum(process_set: ProcessSet) -> None:
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum works on all ranks; it does not take a process set")
    size = process_set.size() or 1
    if size & (size - 1):
        raise NotImplementedError(f"Adasum needs a power of 2 ranks; this job has {size}")


def number_of(process_set: ProcessSet) -> int:
    """Return the number by which the engine knows the set, which has this rank in it."""
    if not _core.is_initialized():
        raise CollectiveError("Horovod has not been initialized; use hvd.init().")
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"{process_set} is not registered; give it to hvd.init() or to hvd.add_process_set()")
    if not process_set.included():
        raise ValueError(f"rank {global_process_set.rank()} is not in {process_set}")
    return number


def key_of(kind: str, name: str | None, process_set: ProcessSet) -> str:
    """Return the name by which ranks match an operation; without one given, a number that all ranks count alike."""
    return f"{kind}.noname.{next(process_set.unnamed)}" if name is None else f"{kind}.{name}"


def refuse(kind: str, key: str, process_set: ProcessSet, message: str, of: int = 1) -> NoReturn:
    """Raise ``ValueError``, and make the operation of that name fail on the other ranks, which wait for this one.

    ``of`` is the number of its tensors: the others wait for each tensor of a group.
    """
    _core.enqueue_fault(number_of(process_set), kind, key, message, of)
    raise ValueError(message)


def check_type(kind: str, key: str, array: Any, process_set: ProcessSet, of: int = 1) -> int:
    """Return the number of an array's element type, one array ``of`` so many."""
    try:
        return code_of(array)
    except ValueError as error:
        refuse(kind, key, process_set, str(error), of)


def group_of(tensors: Sequence[Any]) -> list[Any]:
    """Return the arrays of a group as a list."""
    arrays = list(tensors)
    if not arrays:
        raise ValueError("a group needs at least one tensor")
    return arrays


def root_of(key: str, root_rank: int, process_set: ProcessSet) -> int:
    """Check the root of a broadcast, which is a rank of the job and has to be in the set."""
    root, ranks = int(root_rank), process_set.ranks
    if ranks is not None and root not in ranks:
        refuse("broadcast", key, process_set, f"root_rank {root} is not one of the ranks of {process_set}")
    return root


def splits_of(key: str, array: Any, splits: Any, process_set: ProcessSet) -> list[int] | None:
    """Check how an alltoall shares out its rows."""
    size = process_set.size() or 1
    if not array.shape:
        # Nothing to share out: the engine says so, on every rank.
        return [0] * size
    rows = array.shape[0]
    if splits is None:
        if rows % size:
            message = f"{rows} rows cannot be shared out evenly over {size} ranks; say how with splits"
            refuse("alltoall", key, process_set, message)
        return None
    if isinstance(splits, mx.nd.NDArray):
        if code_of(splits) != _core.DTYPES.index("int32"):
            refuse("alltoall", key, process_set, f"splits has to be of int32, not {splits.dtype}")
        if len(splits.shape) != 1:
            refuse("alltoall", key, process_set, f"splits has to have one dimension, not {len(splits.shape)}")
        splits = splits.asnumpy().tolist()
    counts = list(splits)
    if not all(isinstance(count, int) for count in counts):
        refuse("alltoall", key, process_set, f"splits has to hold whole numbers, not {counts}")
    if len(counts) != size:
        refuse("alltoall", key, process_set, f"splits has {len(counts)} entries, but there are {size} ranks")
    if min(counts) < 0 or sum(counts) > rows:
        refuse("alltoall", key, process_set, f"splits {counts} ask for more or fewer than the {rows} rows there are")
    return counts


def rows_of(key: str, array: Any, op: int, process_set: ProcessSet, of: int = 1) -> tuple[int, ...]:
    """Return the shape of this rank's share of a reducescatter; the first ranks get one row more if it is uneven."""
    if op not in (Average, Sum):
        raise CollectiveError(f"reducescatter knows Average and Sum, but not the reduction with number {op}")
    if not array.shape:
        refuse("reducescatter", key, process_set, "reducescatter needs rows to share out, but a scalar has none", of)
    each, more = divmod(array.shape[0], process_set.size() or 1)
    return (each + (process_set.rank() < more), *array.shape[1:])
