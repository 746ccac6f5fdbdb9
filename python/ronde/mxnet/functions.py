"""Any object, sent to all ranks or gathered from them.

Objects are pickled, by ``cloudpickle`` where it is installed, so that lambdas and classes of the main script travel as
well. Nothing is unpickled but what a rank of the same job has sent.
"""

from __future__ import annotations

import pickle
from typing import Any

import mxnet as mx
import numpy as np

from ronde.mxnet.arguments import refuse
from ronde.mxnet.ops import allgather, broadcast, broadcast_
from ronde.process_sets import global_process_set

try:
    from cloudpickle import dumps
except ImportError:
    from pickle import dumps

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the root's object on every rank.

    >>> import horovod.mxnet as hvd
    >>> hvd.init()
    >>> hvd.broadcast_object({"epoch": 3})
    {'epoch': 3}
    """
    name = name or "object"
    is_root = global_process_set.rank() == root_rank
    data = _pickled(obj, "broadcast", f"broadcast.{name}.sz") if is_root else None
    length = broadcast(_length_of(data), root_rank, f"{name}.sz")
    if data is None:
        data = mx.nd.empty(int(length.asscalar()), dtype="uint8")
    broadcast_(data, root_rank, f"{name}.t")
    # Also on the root: an error has to come out here, and not where this array is found again.
    received = data.asnumpy()
    return obj if is_root else pickle.loads(received.tobytes())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks as a list, by rank.

    >>> import horovod.mxnet as hvd
    >>> hvd.init()
    >>> hvd.allgather_object("mine")
    ['mine']
    """
    name = name or "object"
    data = _pickled(obj, "allgather", f"allgather.{name}.sz")
    lengths = allgather(_length_of(data), f"{name}.sz").asnumpy()
    together = allgather(data, f"{name}.t").asnumpy()
    return [pickle.loads(part.tobytes()) for part in np.split(together, np.cumsum(lengths)[:-1])]


def _length_of(data: Any) -> Any:
    return mx.nd.array([0 if data is None else data.size], dtype="int64")


def _pickled(obj: Any, kind: str, key: str) -> Any:
    """Pickle an object into an array; where that fails, the operation that it was for fails on all ranks."""
    try:
        data = dumps(obj)
    except Exception as error:
        try:
            refuse(kind, key, global_process_set, f"the object cannot be pickled: {error}")
        except ValueError:
            raise error from None
    return mx.nd.array(np.frombuffer(data, dtype=np.uint8), dtype="uint8")
