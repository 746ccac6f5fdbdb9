"""What ranks contribute in the tests, and what should come of it; in NumPy, so that JAX is not compared with itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

import ronde.jax as hvd

WHOLE = ["uint8", "int8", "uint16", "int16", "int32", "int64"]
REAL = ["float16", "bfloat16", "float32", "float64"]
SHAPES: list[tuple[int, ...]] = [(), (17,), (3, 5), (2, 3, 4), (0, 3)]


def of(name: str) -> Any:
    """Return an element type by its name."""
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def numbers(rank: int, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return what a rank contributes: small whole numbers, different on each rank, exact in every type."""
    count = int(np.prod(shape, dtype=int))
    return ((np.arange(count) * (rank + 1) + rank) % 5).reshape(shape).astype(of(dtype))


def everybodys(ranks: list[int], shape: tuple[int, ...], dtype: str = "int64") -> Any:
    """Return what the ranks contribute, one after the other; by default so that nothing computed of it overflows."""
    return np.stack([numbers(rank, shape, dtype) for rank in ranks])


def sets() -> Iterator[tuple[hvd.ProcessSet, list[int]]]:
    """Yield all ranks, and a set that leaves rank 0 out, on those that belong to it."""
    yield hvd.global_process_set, list(range(hvd.size()))
    some = hvd.add_process_set(list(range(1, hvd.size())))
    if some.included():
        assert some.ranks is not None
        yield some, some.ranks
    hvd.barrier()
    assert hvd.remove_process_set(some)


def same(found: Any, expected: Any) -> None:
    """Compare type, shape and every bit."""
    assert found.dtype == expected.dtype, f"{found.dtype} is not {expected.dtype}"
    assert found.shape == expected.shape, f"{found.shape} is not {expected.shape}"
    assert np.array_equal(np.asarray(found), expected), f"{found} is not {expected}"


def close(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Compare shapes, and numbers within a tolerance."""
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(expected, np.float64), rtol=tolerance, atol=tolerance
    )
