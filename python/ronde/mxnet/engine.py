"""The way into MXNet's dependency engine, through the plug-in library ``crates/mxnet``.

:func:`push` puts a collective into MXNet's queue with the arrays that it reads and writes, and returns at once. What
was pushed before and concerns the same arrays runs before it, what is pushed after sees its result.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from typing import Any

from mxnet.base import _LIB, check_call

from ronde import _job, _plugin

__all__ = ["ALLREDUCE", "BROADCAST", "REDUCESCATTER", "push"]

# The collectives that are given their outputs, by the numbers of `crates/bridge`.
ALLREDUCE, BROADCAST, REDUCESCATTER = 0, 2, 4

# How long a rank that leaves waits, at most, for the next of its operations to end.
_PATIENCE_SECONDS = 30.0
_GLANCE_SECONDS = 0.2


def _load() -> ctypes.CDLL:
    library = _plugin.attach("mxnet")
    library.ronde_mxnet_open.argtypes = [ctypes.c_char_p, ctypes.c_bool]
    library.ronde_mxnet_open.restype = ctypes.c_bool
    library.ronde_mxnet_drain.argtypes = [ctypes.c_double]
    library.ronde_mxnet_drain.restype = ctypes.c_size_t
    library.ronde_mxnet_push.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint32,
        ctypes.c_bool,
        ctypes.c_int,
        ctypes.c_double,
        ctypes.c_double,
        ctypes.c_int64,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
    ]
    naive = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"
    if not library.ronde_mxnet_open(os.fsencode(_LIB._name), naive):
        raise ImportError(f"{_LIB._name} lacks functions that MXNet 1.9 has; `pip install mxnet==1.9.1` gets them")
    return library


_library = _load()


def _finish() -> None:
    """Wait for what this rank has pushed: a script may end before MXNet has sent its part, and others wait for that.

    What never ends, since the others do not take part in it, is given up.
    """
    left = _library.ronde_mxnet_drain(0.0)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while left and time.monotonic() < deadline:
        before, left = left, _library.ronde_mxnet_drain(_GLANCE_SECONDS)
        if left != before:
            deadline = time.monotonic() + _PATIENCE_SECONDS


_job.before_leaving.append(_finish)


def push(
    kind: int,
    key: str,
    process_set: int,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    grouped: bool = False,
    op: int = 1,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    priority: int = 0,
) -> None:
    """Put a collective into MXNet's queue; arrays are in the CPU's memory. What is urgent has a high ``priority``."""
    count = len(inputs)
    handles = ctypes.c_void_p * count
    check_call(
        _library.ronde_mxnet_push(
            kind,
            key.encode(),
            process_set,
            grouped,
            op,
            prescale,
            postscale,
            root,
            priority,
            handles(*[array.handle for array in inputs]),
            handles(*[array.handle for array in outputs]),
            count,
        )
    )
