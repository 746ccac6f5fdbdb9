"""Which element types a collective takes, and as what the engine is given them.

The engine has no unsigned integers of 32 and 64 bits, no complex numbers and no floats of one byte. Where elements are
only moved, their bits travel as another type of the same size; where they are added up, as long as that gives the same
bits. The plug-in library has the same rules (``crates/jax/src/elements.rs``); here they come with words for people.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ronde import _core
from ronde._collectives import Average, Sum
from ronde.jax.collectives import Collective, Reduction

__all__ = ["engine_type"]


def engine_type(dtype: Any, call: Collective) -> tuple[str, int]:
    """Return the engine's type for elements, and of how many of it one consists; ``ValueError`` if there is none."""
    dtype = np.dtype(dtype)
    if dtype.name in _core.DTYPES:
        return dtype.name, 1
    moves = not isinstance(call, Reduction)
    unscaled_sum = isinstance(call, Reduction) and (call.op, call.prescale, call.postscale) == (Sum, 1.0, 1.0)
    linear = isinstance(call, Reduction) and call.op in (Average, Sum)
    if dtype.name in ("uint32", "uint64") and (moves or unscaled_sum):
        return dtype.name.removeprefix("u"), 1
    if dtype.name in ("complex64", "complex128") and (moves or linear):
        return ("float32" if dtype.itemsize == 8 else "float64"), 2
    if dtype.name.startswith("float8") and moves:
        return "uint8", 1
    if moves:
        raise ValueError(f"{call.title} cannot take elements of type {dtype.name}")
    raise ValueError(f"{call.title} cannot take elements of type {dtype.name} with this op and these factors: {call}")
