"""How tensors travel: as they are, or in 16 bits.

``Compression`` names what comes with the package. To add one, subclass :class:`Compressor` and pass the class.

On a GPU the engine narrows and widens by itself, while it packs and unpacks what is reduced together. So there an
allreduce with one of our own compressors is handed the tensor as it is and the type to send it in (:func:`wire_of`);
everything else is compressed here, tensor by tensor (:func:`pack`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde._compression import Compressor, NoneCompressor
from ronde.torch.memory import CODES, narrows

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "pack",
    "pack_all",
    "wire_of",
]


class _NarrowCompressor(Compressor):
    """Sends floating-point tensors in a narrower type; ``ctx`` is the type they had."""

    dtype: Any

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor in the narrow type; other than floating-point ones are left alone."""
        return (tensor.to(cls.dtype) if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in the type it had."""
        return tensor.to(ctx)


class FP16Compressor(_NarrowCompressor):
    """Sends floating-point tensors as float16."""

    dtype = torch.float16


class BF16Compressor(_NarrowCompressor):
    """Sends floating-point tensors as bfloat16, which keeps the range of float32."""

    dtype = torch.bfloat16


class Compression:
    """The compressors that come with the package."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


# The types that the engine sends in by itself. A subclass may do anything, and is asked.
_WIRES = [(kind, CODES[kind.dtype]) for kind in (FP16Compressor, BF16Compressor)]

# What undoes a compression.
Undo = Callable[[torch.Tensor], torch.Tensor]


def wire_of(compression: Any, tensor: torch.Tensor) -> int | None:
    """Return the number of the type in which the engine sends a tensor, if it is the engine that compresses it."""
    for kind, wire in _WIRES:
        if compression is kind and narrows(tensor):
            return wire
    return None


def pack(compression: Any, tensor: torch.Tensor) -> tuple[torch.Tensor, Undo, int | None]:
    """Compress a tensor that will be reduced, and return what undoes that; or leave it to the engine to send it so."""
    if compression is NoneCompressor:
        return tensor, _as_it_is, None
    wire = wire_of(compression, tensor)
    if wire is not None:
        return tensor, _as_it_is, wire
    packed, context = compression.compress(tensor)
    return packed, functools.partial(_undo, compression, context), None


def pack_all(compression: Any, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[Undo], Any]:
    """Do the same for several; last comes the compression that is left to the engine, which is none if nothing is."""
    packed = [pack(compression, tensor) for tensor in tensors]
    left = compression if any(wire is not None for _, _, wire in packed) else NoneCompressor
    return [tensor for tensor, _, _ in packed], [undo for _, undo, _ in packed], left


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _undo(compression: Any, context: Any, tensor: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = compression.decompress(tensor, context)
    return result
