"""What the compressors of all frameworks have in common."""

from __future__ import annotations

from typing import Any

__all__ = ["Compressor", "NoneCompressor"]


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
