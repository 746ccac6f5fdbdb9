"""Where a tensor's elements lie, and by which number the engine knows their type.

The one place that knows about devices: everything else asks :func:`reachable` for memory that the engine can read and
write, and :func:`back_to` to return results to where the argument was. A tensor that is contiguous in the memory of
the CPU is handed over as it is; any other goes through a copy.
"""

from __future__ import annotations

from typing import Any

import torch

from ronde import _core

__all__ = ["CODES", "PLAIN", "back_to", "code_of", "reachable", "wrap"]

# The element types of PyTorch that the engine has as well; those that PyTorch itself lacks in some versions are left
# out by `hasattr`.
CODES: dict[Any, int] = {getattr(torch, name): code for code, name in enumerate(_core.DTYPES) if hasattr(torch, name)}

_strided = torch.strided

# Starts operations on tensors for which `reachable` would do nothing, faster than one could find that out here.
PLAIN = _core.PlainTensors([torch.Tensor, torch.nn.Parameter], _strided, list(CODES.items()))


def reachable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same elements, in plain order, in the CPU's memory: the same one wherever possible."""
    if tensor.is_cpu and tensor.layout is _strided and tensor.is_contiguous():
        return tensor
    if tensor.layout is not _strided:
        raise ValueError(
            f"tensor type {tensor.dtype} with layout {tensor.layout} is not supported; only dense tensors are, and "
            "sparse ones by sparse_allreduce_async"
        )
    return tensor.detach().cpu().contiguous()


def code_of(tensor: torch.Tensor) -> int:
    """Return the number of the tensor's element type."""
    code = CODES.get(tensor.dtype)
    if code is None:
        raise ValueError(f"tensor type {tensor.dtype} is not supported")
    return code


def back_to(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return the result on the device of the argument that it came from."""
    return result if tensor.device == result.device else result.to(tensor.device)


def wrap(like: torch.Tensor, capsule: Any, shape: list[int]) -> torch.Tensor:
    """Make a tensor of bytes that the engine allocated, with the type and on the device of another."""
    if capsule is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    return back_to(like, torch.utils.dlpack.from_dlpack(capsule).view(like.dtype).view(shape))
