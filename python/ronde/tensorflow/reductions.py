"""What is settled about a reduction, and about the ranks that do it, before an operation is made."""

from __future__ import annotations

import os
import warnings
from typing import Any

import tensorflow as tf

from ronde import _core
from ronde._build import num_rank_is_power_2
from ronde._collectives import Adasum, Average, Sum
from ronde.process_sets import ProcessSet, global_process_set
from ronde.tensorflow.calls import size_op

__all__ = [
    "check_adasum",
    "check_num_rank_power_of_2",
    "handle_average_backwards_compatibility",
    "is_elastic",
    "number_of",
    "size_of",
]

check_num_rank_power_of_2 = num_rank_is_power_2


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Settle which reduction is meant by ``op`` and its predecessor ``average``.

    >>> handle_average_backwards_compatibility(None, None) == Average
    True
    """
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("average is deprecated; use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    return Average if op is None else op


def check_adasum(op: int, process_set: ProcessSet) -> None:
    """Refuse Adasum where it is not defined: on some of the ranks, or on a number that is no power of two."""
    if op != Adasum:
        return
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum works on all ranks; it does not take a process set")
    size = process_set.size() or 1
    if not num_rank_is_power_2(size):
        raise NotImplementedError(f"Adasum needs a power of 2 ranks; this job has {size}")


def number_of(process_set: ProcessSet) -> int:
    """Return the number by which the operations know the set, or raise as they would for one they do not know."""
    number = process_set.process_set_id
    if number is not None:
        return number
    if not _core.is_initialized():
        raise tf.errors.FailedPreconditionError(None, None, "Horovod has not been initialized; use hvd.init().")
    message = f"{process_set} is not registered; give it to hvd.init() or to hvd.add_process_set()"
    raise tf.errors.InvalidArgumentError(None, None, message)


def is_elastic() -> bool:
    """Tell whether the number of ranks may change, so that graphs must not hold it as a constant."""
    return os.environ.get("HOROVOD_ELASTIC", "").strip().lower() not in ("", "0", "false", "no", "off")


def size_of(process_set: ProcessSet) -> Any:
    """Return the number of ranks of a set: as it is now, or, if it may change, as it is when the graph runs."""
    if is_elastic():
        return size_op(process_set_id=number_of(process_set))
    return process_set.size()
