"""How arrays travel: as they are, or in 16 bits.

``Compression`` names what comes with the package. To add one, subclass :class:`Compressor` and pass the class.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ronde._compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _NarrowCompressor(Compressor):
    """Sends floating-point arrays in a narrower type; ``ctx`` is the type they had."""

    dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the array in the narrow type; other than floating-point ones are left alone."""
        return (tensor.astype(cls.dtype) if jnp.issubdtype(tensor.dtype, jnp.floating) else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the array in the type it had."""
        return tensor.astype(ctx)


class FP16Compressor(_NarrowCompressor):
    """Sends floating-point arrays as float16."""

    dtype = jnp.float16


class BF16Compressor(_NarrowCompressor):
    """Sends floating-point arrays as bfloat16, which keeps the range of float32."""

    dtype = jnp.bfloat16


class Compression:
    """The compressors that come with the package."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
