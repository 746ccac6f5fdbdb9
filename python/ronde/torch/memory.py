"""Where a tensor's elements lie, and by which number the engine knows their type.

The one place that knows about devices: everything else asks :func:`reachable` for memory that the engine can read and
write, and :func:`back_to` to return results to where the argument was. A tensor that is contiguous in the memory of
the CPU, or of the GPU that this rank works with, is handed over as it is; any other goes through a copy.

On a GPU, what an operation may read and who may read its result is a matter of streams: an operation comes with the
stream that was current when it was started (:func:`stream_of`) and waits for the work that stream was given until
then. Nobody else waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ronde import _core

__all__ = ["CODES", "PLAIN", "back_to", "code_of", "narrows", "prefer", "reachable", "room_for", "stream_of", "wrap"]

# The element types of PyTorch that the engine has as well; those that PyTorch itself lacks in some versions are left
# out by `hasattr`.
CODES: dict[Any, int] = {getattr(torch, name): code for code, name in enumerate(_core.DTYPES) if hasattr(torch, name)}

_strided = torch.strided
_WIDE = (torch.float32, torch.float64)

# Starts operations on tensors for which `reachable` would do nothing, faster than one could find that out here.
PLAIN = _core.PlainTensors([torch.Tensor, torch.nn.Parameter], _strided, list(CODES.items()))

# PyTorch for ROCm calls its devices CUDA as well; there, tensors go through the CPU's memory.
_has_cuda = torch.version.cuda is not None and getattr(torch.version, "hip", None) is None


def reachable(tensor: Tensor) -> Tensor:
    """Return a tensor of the same elements, in plain order, where the engine can work: the same one if possible."""
    if tensor.layout is not _strided:
        raise ValueError(
            f"tensor type {tensor.dtype} with layout {tensor.layout} is not supported; only dense tensors are, and "
            "sparse ones by sparse_allreduce_async"
        )
    if tensor.is_cpu:
        near = tensor
    elif tensor.is_cuda and _has_cuda:
        number = _core.use_gpu(tensor.get_device())
        # A rank works with one GPU; PyTorch orders the streams of both around a copy between two.
        near = tensor if tensor.get_device() == number else tensor.detach().to(f"cuda:{number}")
    else:
        near = tensor.detach().cpu()
    return near if near.is_contiguous() else near.detach().contiguous()


def narrows(tensor: Tensor) -> bool:
    """Tell whether the engine can send a tensor in 16 bits by itself: floats of more, in the memory of a GPU."""
    return tensor.is_cuda and _has_cuda and tensor.dtype in _WIDE and tensor.layout is _strided


def stream_of(source: Tensor) -> int | None:
    """Return the stream that an operation on reachable memory comes behind: the current one; none on the CPU."""
    return None if source.is_cpu else _core.current_stream()


def prefer(device: int) -> None:
    """Say which GPU to take if this rank has to take part in an operation on GPUs without having brought a tensor.

    Without a number that is the current one, and before PyTorch has used any, the one of the local rank.
    """
    if not _has_cuda:
        return
    if device < 0 and torch.cuda.is_initialized():
        device = torch.cuda.current_device()
    if device >= 0:
        _core.prefer_gpu(device)


def code_of(tensor: Tensor) -> int:
    """Return the number of the tensor's element type."""
    code = CODES.get(tensor.dtype)
    if code is None:
        raise ValueError(f"tensor type {tensor.dtype} is not supported")
    return code


def back_to(tensor: Tensor, result: Tensor) -> Tensor:
    """Return the result on the device of the argument that it came from."""
    return result if tensor.device == result.device else result.to(tensor.device)


def room_for(source: Tensor, times: int) -> Tensor | None:
    """Return memory on the GPU for a result of so many ``times`` the rows of reachable memory.

    How many rows an operation gives, only the ranks together know. Mostly all bring equally many, and then the engine
    need not allocate what PyTorch could have taken from its cache. On the CPU allocating is left to the engine.
    """
    if source.is_cpu or not source.dim():
        return None
    return source.new_empty((source.shape[0] * times, *source.shape[1:]))


def wrap(like: Tensor, room: Tensor | None, memory: Any, shape: Sequence[int]) -> Tensor:
    """Make a tensor of a result, with the type and on the device of ``like``.

    It lies in memory that the engine allocated or, where there is none, in the ``room`` that it was given; if that is
    not of this shape there are no elements.
    """
    if memory is None:
        if room is not None and room.shape == shape:
            return back_to(like, room)
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    result = torch.utils.dlpack.from_dlpack(memory).view(like.dtype).view(shape)
    # PyTorch's allocator does not know the engine's memory on a GPU, so it cannot see to it that streams are done with
    # it. The engine frees it behind what the current stream has been given when the tensor goes.
    return back_to(like, result if result.is_cpu else result.clone())


def _lend(*objects: Any) -> None:
    """Tell PyTorch's allocator that the current stream uses the tensors among the objects, which came with another.

    Else, once they are dropped, it would give their memory to that other stream, which has not waited for the
    operation.
    """
    for item in objects:
        if isinstance(item, Tensor):
            if item.is_cuda:
                item.record_stream(torch.cuda.current_stream(item.device))
        elif isinstance(item, (list, tuple)):
            _lend(*item)


if _has_cuda:
    _core.use_streams(torch.Tensor, torch._C._cuda_getCurrentRawStream, _lend)
