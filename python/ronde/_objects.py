"""Python objects between ranks, for the fronts of frameworks whose tensors need not be involved.

An object travels as its pickle, made by ``cloudpickle`` where that is installed, so that lambdas and classes of the
main script travel as well. Nothing is unpickled but what a rank of the same job has sent. The bytes go straight to the
engine, so this works wherever Python runs, and raises what the engine raises: ``HorovodInternalError`` if a rank was
lost or ranks disagree, ``ValueError`` for wrong arguments.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy

from ronde import _arrays, _core
from ronde._collectives import _wait
from ronde.exceptions import HorovodInternalError
from ronde.process_sets import ProcessSet, global_process_set

try:
    from cloudpickle import dumps
except ImportError:
    from pickle import dumps

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank.

    >>> import ronde
    >>> ronde.init()
    >>> broadcast_object({"epoch": 3})
    {'epoch': 3}
    """
    key = f"broadcast.{name or 'object'}"
    number = _number_of(process_set)
    is_root = _core.place()[0] == root_rank
    data = _pickled(obj, "broadcast", f"{key}.sz", number) if is_root else numpy.empty(0, numpy.uint8)
    length = numpy.array([data.size])
    _broadcast(number, f"{key}.sz", length, root_rank)
    if not is_root:
        data = numpy.empty(int(length[0]), numpy.uint8)
    _broadcast(number, f"{key}.t", data, root_rank)
    return obj if is_root else pickle.loads(data.tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks as a list, by rank.

    >>> import ronde
    >>> ronde.init()
    >>> allgather_object("mine")
    ['mine']
    """
    key = f"allgather.{name or 'object'}"
    number = _number_of(process_set)
    data = _pickled(obj, "allgather", f"{key}.sz", number)
    lengths = _allgather(number, f"{key}.sz", numpy.array([data.size]))
    together = _allgather(number, f"{key}.t", data)
    return [pickle.loads(part.tobytes()) for part in numpy.split(together, numpy.cumsum(lengths)[:-1])]


def _number_of(process_set: ProcessSet) -> int:
    if not _core.is_initialized():
        raise HorovodInternalError("Horovod has not been initialized; use hvd.init().")
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered; give it to hvd.init() or to hvd.add_process_set()")
    return process_set.process_set_id


def _pickled(obj: Any, kind: str, key: str, number: int) -> Any:
    """Pickle an object into an array; where that fails, the operation that it was for fails on all ranks."""
    try:
        data = dumps(obj)
    except Exception as error:
        _core.enqueue_fault(number, kind, key, f"the object cannot be pickled: {error}")
        raise
    return numpy.frombuffer(bytearray(data), numpy.uint8)


def _broadcast(number: int, key: str, array: Any, root_rank: int) -> None:
    view = _arrays.readable(array)
    _wait(
        _core.enqueue_broadcast(number, key, view.address, view.address, view.shape, view.dtype, root_rank, True), view
    )


def _allgather(number: int, key: str, array: Any) -> Any:
    view = _arrays.readable(array)
    handle = _core.enqueue_allgather(number, key, [(view.address, view.shape, view.dtype)], False, True)
    [(capsule, shape)] = _wait(handle, view)
    return _arrays.adopt(view, capsule, shape)
