"""How tensors travel: as they are, or in 16 bits.

``Compression`` names what comes with the package. To add one, subclass :class:`Compressor` and pass the class.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """Makes a tensor smaller before it travels and undoes that afterwards."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return what travels, and whatever ``decompress`` needs to undo it."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return a tensor as it was before ``compress``."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor itself."""
        del ctx
        return tensor


class _NarrowCompressor(Compressor):
    """Sends floating-point tensors in a narrower type; ``ctx`` is the type they had."""

    dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in the narrow type; other than floating-point ones are left alone."""
        return (tf.cast(tensor, cls.dtype) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in the type it had."""
        return tf.cast(tensor, ctx)


class FP16Compressor(_NarrowCompressor):
    """Sends floating-point tensors as float16."""

    dtype = tf.float16


class BF16Compressor(_NarrowCompressor):
    """Sends floating-point tensors as bfloat16, which keeps the range of float32."""

    dtype = tf.bfloat16


class Compression:
    """The compressors that come with the package."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
