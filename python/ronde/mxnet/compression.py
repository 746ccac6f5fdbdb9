"""How arrays travel: as they are, or in 16 bits.

``Compression`` names what comes with the package. To add one, subclass :class:`Compressor` and pass the class.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde._compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point arrays as float16; ``ctx`` is the type they had."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array as float16; others than float32 and float64 are left alone."""
        narrow = tensor.dtype in (np.float32, np.float64)
        return (tensor.astype(np.float16) if narrow else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the array in the type it had."""
        return tensor if tensor.dtype == ctx else tensor.astype(ctx)


class Compression:
    """The compressors that come with the package."""

    none = NoneCompressor
    fp16 = FP16Compressor
