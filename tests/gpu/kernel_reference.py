"""What the kernels must compute, in NumPy: the rules of ``crates/collective/src/kernel``, written a second time.

Arrays hold elements as they lie in memory; ``bfloat16``, which NumPy does not have, as the 16 bits it is. Everything is
to the bit, so results are compared as bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

FLOATS = ("float16", "float32", "float64", "bfloat16")
NAN_BITS = {
    "float16": np.uint16(0x7E00),
    "bfloat16": np.uint16(0x7FC0),
    "float32": np.uint32(0x7FC00000),
    "float64": np.uint64(0x7FF8 << 48),
}


def stored(dtype: str) -> np.dtype[Any]:
    """NumPy's type for an element in memory."""
    return np.dtype({"bfloat16": "uint16", "bool": "uint8"}.get(dtype, dtype))


def fold(dtype: str, how: str, sources: list[Array], terms: tuple[float, float, int] | None = None) -> Array:
    """Fold plainly or, given terms, as ``postscale * (fold(prescale * source, ...) / divide)``.

    With terms, even if they change nothing, integers fold wide, and the result saturates.
    """
    prescale, postscale, divide = terms or (1.0, 1.0, 1)
    with np.errstate(all="ignore"):
        if dtype == "bool":
            return fold_truth(how, sources)
        if dtype in FLOATS:
            return fold_floats(dtype, how, sources, prescale, postscale, divide)
        if terms is None:
            return fold_wrapping(how, sources)
        if dtype == "int64":
            return fold_exactly(how, sources, prescale, postscale, divide)
        return fold_wide(dtype, how, sources, prescale, postscale, divide)


def convert(source: str, target: str, elements: Array, factor: float) -> Array:
    """Floats of one type as floats of another, which are then scaled."""
    precise = np.float64 if target == "float64" else np.float32
    with np.errstate(all="ignore"):
        # Frameworks make 16 bits of a float64 by way of float32.
        rounded = narrow(target, widen(source, elements).astype(precise))
        return narrow(target, widen(target, rounded) * precise(factor))


def fold_truth(how: str, sources: list[Array]) -> Array:
    truths = np.stack(sources) != 0
    return (truths.any(axis=0) if how in ("sum", "max") else truths.all(axis=0)).astype(np.uint8)


def fold_wrapping(how: str, sources: list[Array]) -> Array:
    result = sources[0]
    for source in sources[1:]:
        result = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}[how](result, source)
    return result


def fold_floats(dtype: str, how: str, sources: list[Array], prescale: float, postscale: float, divide: int) -> Array:
    precise = np.float64 if dtype == "float64" else np.float32
    values = [widen(dtype, source) * precise(prescale) for source in sources]
    result = values[0]
    for value in values[1:]:
        if how == "sum":
            result = result + value
        elif how == "product":
            result = result * value
        else:
            result = outermost(how, result, value)
    if how == "sum":
        result = result / precise(divide)
    return narrow(dtype, result * precise(postscale))


def outermost(how: str, a: Array, b: Array) -> Array:
    """IEEE 754-2019's minimum or maximum: NaN if either is, and -0.0 less than +0.0."""
    a_wins = (a < b) if how == "min" else (a > b)
    a_wins |= (a == b) & (np.signbit(a) == (how == "min"))
    return np.where(np.isnan(a) | a_wins, a, b)


def widen(dtype: str, elements: Array) -> Array:
    if dtype == "bfloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements.astype(np.float32) if dtype == "float16" else elements


def narrow(dtype: str, values: Array) -> Array:
    """Round once, to nearest even, and give every NaN the same bits."""
    with np.errstate(all="ignore"):
        result = narrow_number(dtype, values)
    return np.where(np.isnan(values), NAN_BITS[dtype], result).view(stored(dtype))


def narrow_number(dtype: str, values: Array) -> Array:
    if dtype == "bfloat16":
        return narrow_to_bfloat16(values.astype(np.float64))
    return values.astype(dtype).view(NAN_BITS[dtype].dtype)


def narrow_to_bfloat16(values: Array) -> Array:
    """Round ``float64``: the significand to eight bits, below the normal numbers to a whole number of the least ones.

    Then ``float32`` holds the result, and its upper half is all of it.
    """
    bits = np.ascontiguousarray(values).view(np.uint64)
    dropped = np.uint64(45)
    even = (bits >> dropped) & np.uint64(1)
    normal = (((bits + np.uint64((1 << 44) - 1) + even) >> dropped) << dropped).view(np.float64)
    least = 2.0**-133
    subnormal = np.rint(values / least) * least
    rounded = np.where(np.abs(values) < 2.0**-126, subnormal, np.where(np.isfinite(values), normal, values))
    return (rounded.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def truncate(values: Array) -> Array:
    """``float64`` as ``int64``: cut toward zero, held within the range, 0 for NaN."""
    limit = 2.0**63
    inside = np.where((values >= -limit) & (values < limit), values, 0.0).astype(np.int64)
    extremes = np.iinfo(np.int64)
    return np.where(values >= limit, extremes.max, np.where(values < -limit, extremes.min, inside))


def fold_wide(dtype: str, how: str, sources: list[Array], prescale: float, postscale: float, divide: int) -> Array:
    def scaled(values: Array, factor: float) -> Array:
        return values if factor == 1.0 else truncate(values.astype(np.float64) * factor)

    result = fold_wrapping(how, [scaled(source.astype(np.int64), prescale) for source in sources])
    if how == "sum" and divide != 1:
        magnitude = np.where(result < 0, -result, result).view(np.uint64) // np.uint64(divide)
        result = np.where(result < 0, -magnitude.view(np.int64), magnitude.view(np.int64))
    extremes = np.iinfo(dtype)
    return np.clip(scaled(result, postscale), extremes.min, extremes.max).astype(dtype)


def fold_exactly(how: str, sources: list[Array], prescale: float, postscale: float, divide: int) -> Array:
    """Fold ``int64`` by Python's integers, kept within 128 bits as the fold is."""

    def wrapped(value: int) -> int:
        return (value + (1 << 127)) % (1 << 128) - (1 << 127)

    values = [source if prescale == 1.0 else truncate(source.astype(np.float64) * prescale) for source in sources]
    results = []
    for first, *others in zip(*(value.tolist() for value in values)):
        result = first
        for value in others:
            if how == "sum":
                result = wrapped(result + value)
            elif how == "product":
                result = wrapped(result * value)
            else:
                result = min(result, value) if how == "min" else max(result, value)
        if how == "sum":
            result = abs(result) // divide * (1 if result >= 0 else -1)
        results.append(result)
    if postscale != 1.0:
        results = truncate(np.array([float(result) for result in results]) * postscale).tolist()
    return np.array([min(max(result, -(1 << 63)), (1 << 63) - 1) for result in results], dtype=np.int64)
