"""What a rank does before the checks of this folder."""

from __future__ import annotations

import jax


def once() -> None:
    """Have all element types; without this JAX makes 32 bits of 64."""
    jax.config.update("jax_enable_x64", True)


def each() -> None:
    """Nothing: JAX has no state that one check could leave to the next."""
