"""Any object, sent to all ranks or gathered from them.

They go straight to Ronde's engine (:mod:`ronde._objects`), not through MXNet's.
"""

from __future__ import annotations

from typing import Any

from ronde import _objects
from ronde.mxnet.errors import as_mxnet_raises

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the root's object on every rank.

    >>> import horovod.mxnet as hvd
    >>> hvd.init()
    >>> hvd.broadcast_object({"epoch": 3})
    {'epoch': 3}
    """
    with as_mxnet_raises():
        return _objects.broadcast_object(obj, root_rank, name)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks as a list, by rank.

    >>> import horovod.mxnet as hvd
    >>> hvd.init()
    >>> hvd.allgather_object("mine")
    ['mine']
    """
    with as_mxnet_raises():
        return _objects.allgather_object(obj, name)
