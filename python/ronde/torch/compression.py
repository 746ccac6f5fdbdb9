"""How tensors travel: as they are, or in 16 bits.

``Compression`` names what comes with the package. To add one, subclass :class:`Compressor` and pass the class.
"""

from __future__ import annotations

from typing import Any

import torch

from ronde._compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


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
