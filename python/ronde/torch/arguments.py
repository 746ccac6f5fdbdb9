"""What an operation checks and finds out about its arguments before it is started.

An argument that is wrong on one rank only would leave the others waiting for it. So whoever refuses one tells the
engine as well, under the name of the operation (:func:`refuse`), and it fails everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ronde import _core
from ronde._collectives import Adasum, Average, Sum
from ronde.exceptions import HorovodInternalError
from ronde.process_sets import ProcessSet, global_process_set
from ronde.torch.memory import code_of, reachable

__all__ = [
    "check_adasum",
    "checked",
    "input_of",
    "key_of",
    "number_of",
    "reduction",
    "refuse",
    "rooms_of",
    "root_of",
    "same_device",
    "share_of",
    "splits_of",
]


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
        check_adasum(process_set)
    return op


def check_adasum(process_set: ProcessSet) -> None:
    """Refuse Adasum where it is not defined: on some of the ranks, or on a number that is no power of two."""
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum works on all ranks; it does not take a process set")
    size = process_set.size() or 1
    if size & (size - 1):
        raise NotImplementedError(f"Adasum needs a power of 2 ranks; this job has {size}")


def number_of(process_set: ProcessSet) -> int:
    """Return the number by which the engine knows the set."""
    number = process_set.process_set_id
    if number is None:
        if not _core.is_initialized():
            raise HorovodInternalError("Horovod has not been initialized; use hvd.init().")
        raise ValueError(f"{process_set} is not registered; give it to hvd.init() or to hvd.add_process_set()")
    return number


def refuse(kind: str, key: str, process_set: ProcessSet, message: str, of: int = 1) -> NoReturn:
    """Raise ``ValueError``, and make the operation of that name fail on the other ranks, which wait for this one.

    ``of`` is the number of its tensors: the others wait for each tensor of a group.
    """
    _core.enqueue_fault(number_of(process_set), kind, key, message, of)
    raise ValueError(message)


def key_of(kind: str, name: str | None, process_set: ProcessSet) -> str:
    """Return the name by which ranks match an operation; without one given, a number that all ranks count alike."""
    return f"{kind}.noname.{next(process_set.unnamed)}" if name is None else f"{kind}.{name}"


def checked(
    check: Callable[[Tensor], Any], kind: str, key: str, tensor: Tensor, process_set: ProcessSet, of: int = 1
) -> Any:
    """Return what a function says about a tensor; if it refuses, the other ranks hear of it."""
    try:
        return check(tensor)
    except ValueError as error:
        refuse(kind, key, process_set, str(error), of)


def input_of(
    kind: str, key: str, tensor: Tensor, process_set: ProcessSet, of: int = 1
) -> tuple[Tensor, tuple[int, Any, int]]:
    """Return the memory of an argument, one ``of`` so many, and its address, shape and type."""
    dtype = checked(code_of, kind, key, tensor, process_set, of)
    source = checked(reachable, kind, key, tensor, process_set, of)
    return source, (source.data_ptr(), source.shape, dtype)


def rooms_of(rooms: Sequence[Tensor | None]) -> list[tuple[int, int]]:
    """Return address and bytes of the memory that was allocated for results; zeros where none was."""
    return [(0, 0) if room is None else (room.data_ptr(), room.numel() * room.element_size()) for room in rooms]


def same_device(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors of a group, which have to be on one device, as a list."""
    tensors = list(tensors)
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        found = ", ".join(sorted(map(str, devices)))
        raise HorovodInternalError(f"the tensors of a group have to be on one device, but these are on {found}")
    if not tensors:
        raise ValueError("a group needs at least one tensor")
    return tensors


def root_of(key: str, root_rank: int, process_set: ProcessSet) -> int:
    """Check the root of a broadcast, which is a rank of the job and has to be in the set."""
    root, ranks = int(root_rank), process_set.ranks
    if ranks is not None and root not in ranks:
        refuse("broadcast", key, process_set, f"root_rank {root} is not one of the ranks of {process_set}")
    return root


def splits_of(key: str, tensor: Tensor, splits: Any, process_set: ProcessSet) -> list[int] | None:
    """Check how an alltoall shares out its rows."""
    number_of(process_set)
    size = process_set.size()
    if size is None:
        # Not in a job; the engine says so.
        return None
    if not tensor.dim():
        # Nothing to share out: the engine says so, on every rank.
        return [0] * size
    rows = tensor.shape[0]
    if splits is None:
        if rows % size:
            message = f"{rows} rows cannot be shared out evenly over {size} ranks; say how with splits"
            refuse("alltoall", key, process_set, message)
        return None
    if isinstance(splits, Tensor):
        if splits.dtype is not torch.int32:
            refuse("alltoall", key, process_set, f"splits has to be of int32, not {splits.dtype}")
        if splits.dim() != 1:
            refuse("alltoall", key, process_set, f"splits has to have one dimension, not {splits.dim()}")
        splits = splits.tolist()
    counts = list(splits)
    if not all(isinstance(count, int) for count in counts):
        refuse("alltoall", key, process_set, f"splits has to hold whole numbers, not {counts}")
    if len(counts) != size:
        refuse("alltoall", key, process_set, f"splits has {len(counts)} entries, but there are {size} ranks")
    if min(counts) < 0 or sum(counts) > rows:
        refuse("alltoall", key, process_set, f"splits {counts} ask for more or fewer than the {rows} rows there are")
    return counts


def share_of(key: str, tensor: Tensor, op: int, process_set: ProcessSet, of: int = 1) -> tuple[Tensor, Tensor, Any]:
    """Return input, output and description of one tensor of a reducescatter."""
    if op not in (Average, Sum):
        raise HorovodInternalError(f"reducescatter knows Average and Sum, but not the reduction with number {op}")
    source, (address, shape, dtype) = input_of("reducescatter", key, tensor, process_set, of)
    if not shape:
        refuse("reducescatter", key, process_set, "reducescatter needs rows to share out, but a scalar has none", of)
    number_of(process_set)
    size = process_set.size()
    if size is None:
        raise HorovodInternalError("Horovod has not been initialized; use hvd.init().")
    each, more = divmod(shape[0], size)
    output = source.new_empty((each + (process_set.rank() < more), *shape[1:]))
    return source, output, (address, output.data_ptr(), shape, dtype)
