"""Every collective on real ranks and every element type, against the same in NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ronde
from ranks import all_ranks_pass

DTYPES = [
    *("uint8", "int8", "uint16", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "bool"),
]
NUMBERS = [dtype for dtype in DTYPES if dtype != "bool"]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (40, 1001)]

over_ranks = pytest.mark.parametrize("ranks", [1, 2, 3])


def numbers(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return what a rank brings: small whole numbers, so that every type adds, multiplies and divides exactly."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    drawn = np.random.default_rng(rank).integers(0, 5, shape)
    return np.asarray(drawn + rank % 2).astype(kind)


def everybody(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return what all ranks bring, as exact numbers in the order of ranks."""
    return np.stack([numbers(rank, shape, dtype).astype(np.float64) for rank in range(ronde.size())])


def assert_equal(result: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """Compare the values exactly, and the type and the shape."""
    assert result.dtype.name == dtype
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.astype(np.float64), expected)


def reduces() -> None:
    ronde.init()
    for dtype in NUMBERS:
        for shape in SHAPES:
            mine, all_of_them = numbers(ronde.rank(), shape, dtype), everybody(shape, dtype)
            before = mine.copy()
            assert_equal(ronde.allreduce(mine, op=ronde.Sum), all_of_them.sum(axis=0), dtype)
            assert_equal(ronde.allreduce(mine, op=ronde.Min), all_of_them.min(axis=0), dtype)
            assert_equal(ronde.allreduce(mine, op=ronde.Max), all_of_them.max(axis=0), dtype)
            assert_equal(ronde.allreduce(mine, op=ronde.Product), all_of_them.prod(axis=0), dtype)
            np.testing.assert_array_equal(mine, before)


def averages() -> None:
    ronde.init()
    for dtype in NUMBERS:
        mean = everybody((50,), dtype).sum(axis=0) / ronde.size()
        expected = np.trunc(mean) if "int" in dtype else mean.astype(numbers(0, (), dtype).dtype)
        assert_equal(ronde.allreduce(numbers(ronde.rank(), (50,), dtype)), expected.astype(np.float64), dtype)
    down = ronde.allreduce(np.array([-5 if ronde.rank() == 0 else 0]))
    assert down.tolist() == [int(-5 / ronde.size())]


def scales() -> None:
    ronde.init()
    ones = np.ones(9, np.float32)
    result = ronde.allreduce(ones, op=ronde.Sum, prescale_factor=0.5, postscale_factor=6.0)
    np.testing.assert_array_equal(result, np.full(9, 3.0 * ronde.size(), np.float32))


def reduces_in_place() -> None:
    ronde.init()
    for dtype in NUMBERS:
        mine = numbers(ronde.rank(), (4, 6), dtype)
        assert ronde.allreduce_(mine, op=ronde.Sum) is mine
        assert_equal(mine, everybody((4, 6), dtype).sum(axis=0), dtype)


def combines_with_adasum() -> None:
    ronde.init()
    # Gradients at right angles are added, equal ones averaged.
    at_right_angles = np.zeros(4, np.float32)
    at_right_angles[ronde.rank()] = 2.0
    expected = np.array([2.0] * ronde.size() + [0.0] * (4 - ronde.size()), np.float32)
    np.testing.assert_allclose(ronde.allreduce(at_right_angles, op=ronde.Adasum), expected, rtol=1e-6)
    equal = np.array([1.0, -3.0], np.float32)
    np.testing.assert_allclose(ronde.allreduce(equal, op=ronde.Adasum), equal, rtol=1e-6)


def gathers() -> None:
    ronde.init()
    for dtype in DTYPES:
        for row in [(), (3,), (2, 2), (0,)]:
            mine = numbers(ronde.rank(), (ronde.rank() * 2, *row), dtype)
            shares = [numbers(rank, (rank * 2, *row), dtype) for rank in range(ronde.size())]
            assert_equal(ronde.allgather(mine), np.concatenate(shares).astype(np.float64), dtype)
    assert ronde.allgather(np.array(ronde.rank())).tolist() == list(range(ronde.size()))


def broadcasts() -> None:
    ronde.init()
    for root in range(ronde.size()):
        for dtype in DTYPES:
            for shape in SHAPES:
                mine, roots = numbers(ronde.rank(), shape, dtype), numbers(root, shape, dtype)
                before = mine.copy()
                assert_equal(ronde.broadcast(mine, root_rank=root), roots.astype(np.float64), dtype)
                np.testing.assert_array_equal(mine, before)
                assert ronde.broadcast_(mine, root_rank=root) is mine
                assert_equal(mine, roots.astype(np.float64), dtype)


def reduces_and_scatters() -> None:
    ronde.init()
    for dtype in NUMBERS:
        for shape in [(0,), (1,), (7,), (8, 3), (2, 0)]:
            share = np.array_split(everybody(shape, dtype).sum(axis=0), ronde.size())[ronde.rank()]
            assert_equal(ronde.reducescatter(numbers(ronde.rank(), shape, dtype), op=ronde.Sum), share, dtype)
    average = ronde.reducescatter(np.full(6, 4.0), prescale_factor=2.0, postscale_factor=0.25)
    np.testing.assert_array_equal(average, np.full(len(np.array_split(np.empty(6), ronde.size())[ronde.rank()]), 2.0))


def exchanges() -> None:
    ronde.init()
    me, size = ronde.rank(), ronde.size()
    for dtype in DTYPES:
        # Rank r sends r + o rows to rank o, each filled with the sender's number.
        splits = [me + other for other in range(size)]
        rows, received = ronde.alltoall(np.full((sum(splits), 2), me).astype(numbers(0, (), dtype).dtype), splits)
        senders = np.concatenate([np.full((other + me, 2), other) for other in range(size)])
        assert_equal(rows, senders.astype(rows.dtype).astype(np.float64), dtype)
        assert received.dtype == np.int32
        assert received.tolist() == [other + me for other in range(size)]
    even = ronde.alltoall(np.arange(size * 2) + 100 * me)
    assert even.tolist() == [100 * other + 2 * me + row for other in range(size) for row in range(2)]


def waits_for_everybody() -> None:
    ronde.init()
    for _ in range(100):
        ronde.barrier()


@over_ranks
@pytest.mark.parametrize(
    "program",
    [
        reduces,
        averages,
        scales,
        reduces_in_place,
        combines_with_adasum,
        gathers,
        broadcasts,
        reduces_and_scatters,
        exchanges,
        waits_for_everybody,
    ],
)
def test_every_rank(program: object, ranks: int) -> None:
    all_ranks_pass(ranks, program)
