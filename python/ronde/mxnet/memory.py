"""Arrays as collectives take them: dense, of a known type, in the CPU's memory.

The one place that knows about contexts. An array that lies elsewhere goes through a copy; copies are operations of
MXNet like any other, so they too run in order, in the background.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, check_call

from ronde import _core

__all__ = ["address_of", "back_to", "code_of", "empty", "filled", "overwrite", "reachable"]

# MXNet's numbers for element types, by the names of those that the engine has as well.
_TYPES = {
    0: "float32",
    1: "float64",
    2: "float16",
    3: "uint8",
    4: "int32",
    5: "int8",
    6: "int64",
    7: "bool",
    12: "bfloat16",
}
_CODES = {number: _core.DTYPES.index(name) for number, name in _TYPES.items()}


def code_of(array: Any) -> int:
    """Return the engine's number of the array's element type; ``ValueError`` for what is no dense array of one."""
    if not isinstance(array, mx.nd.NDArray):
        raise ValueError(f"a collective takes arrays of MXNet, not {type(array).__name__}")
    if array.stype != "default":
        raise ValueError(
            f"arrays with storage type {array.stype} are not supported; tostype('default') makes a dense one"
        )
    number = ctypes.c_int()
    check_call(_LIB.MXNDArrayGetDType(array.handle, ctypes.byref(number)))
    code = _CODES.get(number.value)
    if code is None:
        raise ValueError(f"tensor type {array.dtype} is not supported")
    return code


def _on_host(array: Any) -> bool:
    # There are also "cpu_pinned" and "cpu_shared".
    return bool(array.context.device_type.startswith("cpu"))


def reachable(array: Any) -> Any:
    """Return an array of the same elements in the CPU's memory: the same one wherever possible."""
    if _on_host(array):
        return array
    with mx.autograd.pause():
        return array.as_in_context(mx.cpu())


def back_to(array: Any, result: Any) -> Any:
    """Return a result in the context, and of the kind, of the argument that it came from."""
    if result.context != array.context:
        with mx.autograd.pause():
            result = result.as_in_context(array.context)
    return result.as_np_ndarray() if isinstance(array, mx.np.ndarray) else result.as_nd_ndarray()


def overwrite(array: Any, result: Any) -> Any:
    """Put a result in place of the argument that it came from, if it is not there, and return that."""
    if result is not array:
        with mx.autograd.pause():
            array[:] = back_to(array, result)
    return array


def empty(like: Any, shape: Sequence[int]) -> Any:
    """Return a new array in the CPU's memory, of the type of another, which is there too."""
    # Outside of this, MXNet takes an extent of 0 for one that is not known yet.
    with mx.util.np_shape(True):
        return mx.nd.empty(tuple(shape), ctx=like.context, dtype=like.dtype)


def address_of(array: Any) -> int:
    """Wait until an array is computed, and return where its elements lie."""
    array.wait_to_read()
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value or 0


def filled(like: Any, capsule: Any, shape: Sequence[int]) -> Any:
    """Make an array of bytes that the engine allocated, with the type of another, which is in the CPU's memory."""
    result = empty(like, shape)
    if capsule is not None:
        address = _core.describe_dlpack(capsule)[0]
        check_call(_LIB.MXNDArraySyncCopyFromCPU(result.handle, ctypes.c_void_p(address), ctypes.c_size_t(result.size)))
    return result
