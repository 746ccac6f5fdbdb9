"""Which arrays are accepted, where their elements lie, and how to make another of the same kind.

A collective asks for a :class:`View` of its argument, makes an empty one for its result, and hands the result's
``holder`` to the caller: a NumPy array for NumPy arrays and plain buffers (a ``memoryview`` where NumPy is not
installed), a PyTorch tensor for tensors. PyTorch is never imported here, NumPy only for those who have it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from ronde import _core

# Kinds of numbers by the format letter of a buffer; the size is the buffer's to say.
_KINDS = {**dict.fromkeys("bhilqn", "int"), **dict.fromkeys("BHILQN", "uint"), **dict.fromkeys("efd", "float")}
# The other way round, for those that a memoryview can be made of.
_LETTERS = {
    "uint8": "B",
    "int8": "b",
    "uint16": "H",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float32": "f",
    "float64": "d",
    "bool": "?",
}


class View(NamedTuple):
    """Elements in plain order, rows one after the other, and the object that keeps them in memory."""

    holder: Any
    address: int
    elements: int
    dtype: int
    shape: tuple[int, ...]
    writable: bool
    # Whether this is a copy, because the argument's own elements are in another order.
    copied: bool = False

    @property
    def rows(self) -> int:
        """The first dimension; an array without dimensions is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_elements(self) -> int:
        """How many elements a row has."""
        return math.prod(self.shape[1:])


def readable(tensor: Any) -> View:
    """View the elements of an array."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return _of_numpy(numpy, tensor)
    if _is_torch(tensor):
        return _of_torch(tensor)
    try:
        buffer = memoryview(tensor)
    except TypeError:
        return _of_dlpack(tensor)
    numpy = _numpy()
    return _of_buffer(buffer) if numpy is None else _of_numpy(numpy, numpy.asarray(buffer))


def writable(tensor: Any, caller: str) -> View:
    """View the elements of an array that `caller` is going to change in place."""
    view = readable(tensor)
    if view.copied:
        raise ValueError(
            f"{caller} changes its argument in place, so the elements have to be C-contiguous and in native byte "
            f"order; {caller.rstrip('_')} takes any array and returns a new one"
        )
    if not view.writable:
        raise ValueError(f"{caller} changes its argument in place, but this one is read-only")
    return view


def empty(like: View, shape: tuple[int, ...]) -> View:
    """Make an array of the same kind and element type, with any content."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(like.holder, numpy.ndarray):
        return _of_numpy(numpy, numpy.empty(shape, like.holder.dtype))
    if _is_torch(like.holder):
        return _of_torch(like.holder.new_empty(shape))
    return _new(_core.DTYPES[like.dtype], shape)


def adopt(like: View, capsule: Any | None, shape: tuple[int, ...]) -> Any:
    """Make an array of the same kind and element type of bytes that the engine allocated, without copying them."""
    if capsule is None:
        return empty(like, shape).holder
    if _is_torch(like.holder):
        flat = sys.modules["torch"].utils.dlpack.from_dlpack(capsule)
        return flat.view(like.holder.dtype).view(shape)
    address, extents, _, _, _ = _core.describe_dlpack(capsule)
    memory: Any = (ctypes.c_ubyte * extents[0]).from_address(address)
    # The bytes live as long as the capsule does, and the capsule as long as whoever views them.
    memory.owner = capsule
    numpy = _numpy()
    if numpy is None:
        return memoryview(memory).cast("B").cast(_letter(_core.DTYPES[like.dtype]), shape)
    flat = numpy.frombuffer(memory, numpy.uint8)
    dtype = (
        like.holder.dtype
        if isinstance(like.holder, numpy.ndarray)
        else _new(_core.DTYPES[like.dtype], (0,)).holder.dtype
    )
    return flat.view(dtype).reshape(shape)


def integers(like: View, values: Sequence[int]) -> Any:
    """Make a one-dimensional array of int32 of the same kind."""
    if _is_torch(like.holder):
        return like.holder.new_tensor(values, dtype=sys.modules["torch"].int32)
    result = _new("int32", (len(values),)).holder
    for place, value in enumerate(values):
        result[place] = value
    return result


def _of_numpy(numpy: Any, array: Any) -> View:
    found = _core.describe_array(array)
    if found is not None:
        address, count, dtype, may_write = found
        return View(array, address, count, dtype, array.shape, may_write)
    return _of_numpy(numpy, numpy.array(array, array.dtype.newbyteorder("="), order="C"))._replace(copied=True)


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _of_torch(tensor: Any) -> View:
    if tensor.device.type != "cpu":
        raise ValueError(f"the tensor is on device {tensor.device}; only tensors in the memory of the CPU are taken")
    if tensor.layout is not sys.modules["torch"].strided:
        raise ValueError(f"the tensor's layout is {tensor.layout}; only strided (dense) tensors are taken")
    plain = tensor.contiguous()
    dtype = _core.dtype_code(str(plain.dtype).rpartition(".")[2])
    return View(plain, plain.data_ptr(), plain.numel(), dtype, tuple(plain.shape), True, plain is not tensor)


def _of_dlpack(tensor: Any) -> View:
    export = getattr(tensor, "__dlpack__", None)
    if export is None:
        raise TypeError(
            f"expected an array (NumPy, PyTorch, the buffer protocol or __dlpack__), not {type(tensor).__name__}"
        )
    try:
        capsule = export(max_version=(1, 0))
    except TypeError:
        # From before DLPack had versions.
        capsule = export()
    address, shape, dtype, may_write, plain = _core.describe_dlpack(capsule)
    if plain:
        return View(capsule, address, math.prod(shape), dtype, tuple(shape), may_write)
    numpy = _numpy()
    if numpy is None:
        raise ValueError("the elements are not C-contiguous; copy them first, or install NumPy, which does that")
    return _of_numpy(numpy, numpy.from_dlpack(tensor))._replace(copied=True)


def _of_buffer(buffer: memoryview) -> View:
    """View a plain buffer without NumPy's help."""
    order, letter = buffer.format[:-1], buffer.format[-1:]
    native = order in ("", "@", "=", "<" if sys.byteorder == "little" else ">")
    kind = _KINDS.get(letter) if native else None
    name = f"{kind}{8 * buffer.itemsize}" if kind else "bool" if letter == "?" else repr(buffer.format)
    dtype = _core.dtype_code(name)
    shape = buffer.shape or ()
    if buffer.readonly or not buffer.c_contiguous:
        # Only memory that may be written tells its address, so what is read-only is copied as well.
        view = _plain(name, bytearray(buffer.tobytes()), shape)
        return view._replace(writable=not buffer.readonly, copied=not buffer.c_contiguous)
    return View(buffer, _address(buffer), math.prod(shape), dtype, shape, True)


def _new(name: str, shape: tuple[int, ...]) -> View:
    """Make an array for a holder that has no kind of its own: NumPy's if there is NumPy, else a plain buffer."""
    numpy = _numpy()
    if numpy is None:
        return _plain(name, bytearray(math.prod(shape) * struct.calcsize(_letter(name))), shape)
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise ValueError("NumPy arrays of bfloat16 need the package ml_dtypes, which is not installed") from None
        return _of_numpy(numpy, numpy.empty(shape, ml_dtypes.bfloat16))
    return _of_numpy(numpy, numpy.empty(shape, name))


def _plain(name: str, memory: bytearray, shape: tuple[int, ...]) -> View:
    flat = memoryview(memory)
    # A memoryview knows no dimensions of length zero but the first.
    holder = flat.cast(_letter(name), shape) if memory else flat.cast(_letter(name))
    return View(holder, _address(flat), math.prod(shape), _core.dtype_code(name), shape, True)


def _letter(name: str) -> Any:
    if name not in _LETTERS:
        raise ValueError(f"arrays of element type {name} need NumPy, which is not installed")
    return _LETTERS[name]


def _address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if buffer.nbytes else 0


@functools.cache
def _numpy() -> Any | None:
    try:
        import numpy
    except ImportError:
        return None
    return numpy
