"""Every operation gives what its definition says: all types and dimensions, compiled and not, all ranks or some."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from values import REAL, SHAPES, WHOLE, close, everybodys, numbers, same, sets

import ronde.jax as hvd
from together import on_ranks

ROWS: list[tuple[int, ...]] = [(6,), (12, 5), (6, 3, 4), (0, 3)]


def both(function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """Return the results of a call, and of a compiled one."""
    compiled = jax.jit(lambda *arrays: function(*arrays, **options))
    return [function(*arguments, **options), compiled(*arguments)]


def check(
    function: Callable[..., Any],
    expected: Callable[[Any, int], Any],
    dtypes: list[str],
    shapes: list[tuple[int, ...]],
    **options: Any,
) -> None:
    """Compare results for every type and shape, on all ranks and on some.

    ``expected`` is given what all contribute and the place of this rank. One program has all calls, since compiling
    takes longer than running; outside of it, every type and every shape has its turn once.
    """
    for process_set, ranks in sets():
        cases = list(itertools.product(dtypes, shapes))
        mine = [numbers(hvd.rank(), shape, dtype) for dtype, shape in cases]
        results = [
            np.asarray(expected(everybodys(ranks, shape), process_set.rank())).astype(array.dtype)
            for (_, shape), array in zip(cases, mine)
        ]

        def call(array: Any, process_set: Any = process_set) -> Any:
            return function(array, process_set=process_set, **options)

        for found, result in zip(jax.jit(lambda arrays: [call(array) for array in arrays])(mine), results):
            same(found, result)
        for number, (array, result) in enumerate(zip(mine, results)):
            if number % len(shapes) == number // len(shapes) % len(shapes):
                same(call(array), result)


@on_ranks(2, 3)
def test_allreduce_adds_up() -> None:
    check(hvd.allreduce, lambda arrays, _: arrays.sum(0), [*WHOLE, *REAL], SHAPES, op=hvd.Sum)


@on_ranks(2, 3)
def test_allreduce_averages_by_default_and_exactly_for_whole_numbers() -> None:
    check(hvd.allreduce, lambda arrays, _: np.trunc(arrays.sum(0) / len(arrays)), ["int8", "int64"], SHAPES)
    for process_set, ranks in sets():
        for dtype in REAL:
            found = hvd.allreduce(numbers(hvd.rank(), (17,), dtype), process_set=process_set)
            close(found, everybodys(ranks, (17,)).mean(0), 1e-2)


@on_ranks(2, 3)
def test_min_max_product_and_factors() -> None:
    some = ["int32", "float32", "bfloat16"]
    check(hvd.allreduce, lambda arrays, _: arrays.min(0), some, [(3, 5)], op=hvd.Min)
    check(hvd.allreduce, lambda arrays, _: arrays.max(0), some, [(3, 5)], op=hvd.Max)
    check(hvd.allreduce, lambda arrays, _: arrays.prod(0), some, [(3, 5)], op=hvd.Product)
    factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    check(hvd.allreduce, lambda arrays, _: 2 * arrays.sum(0), REAL, [(3, 5)], op=hvd.Sum, **factors)


@on_ranks(2)
def test_bool_is_reduced_by_or_and_and() -> None:
    everybody = everybodys([0, 1], (17,), "bool")
    mine = numbers(hvd.rank(), (17,), "bool")
    for found in both(hvd.allreduce, mine, op=hvd.Max):
        same(found, everybody.any(0))
    for found in both(hvd.allreduce, mine, op=hvd.Min):
        same(found, everybody.all(0))


@on_ranks(2)
def test_adasum_keeps_equal_and_adds_orthogonal_vectors() -> None:
    equal = np.arange(1.0, 6.0, dtype=np.float32)
    orthogonal = np.eye(2, dtype=np.float32)[hvd.rank()]
    for found in both(hvd.allreduce, equal, op=hvd.Adasum):
        close(found, equal)
    for found in both(hvd.allreduce, orthogonal, op=hvd.Adasum):
        close(found, np.ones(2))


@on_ranks(3)
def test_adasum_is_refused_where_it_is_not_defined() -> None:
    with pytest.raises(NotImplementedError, match="power of 2"):
        hvd.allreduce(np.ones(2), op=hvd.Adasum)


@on_ranks(2, 3)
def test_types_that_the_engine_has_not_travel_as_others() -> None:
    ranks = list(range(hvd.size()))
    for dtype in ["uint32", "uint64"]:
        mine = numbers(hvd.rank(), (7,), dtype) + np.array(2**31, dtype)
        everybody = np.stack([numbers(rank, (7,), dtype) + np.array(2**31, dtype) for rank in ranks])
        for found in both(hvd.allreduce, mine, op=hvd.Sum):
            same(found, everybody.sum(0, dtype=dtype))
        for found in both(hvd.broadcast, mine, root_rank=1):
            same(found, everybody[1])
        with pytest.raises(ValueError, match=f"{dtype} with this op"):
            hvd.allreduce(mine, op=hvd.Max)
    for dtype in ["complex64", "complex128"]:
        mine = numbers(hvd.rank(), (4, 3), dtype) * np.array(1 + 2j, dtype)
        everybody = np.stack([numbers(rank, (4, 3), dtype) * np.array(1 + 2j, dtype) for rank in ranks])
        for found in both(hvd.allreduce, mine, op=hvd.Sum):
            same(found, everybody.sum(0, dtype=dtype))
        for found in both(hvd.allgather, mine):
            same(found, everybody.reshape(-1, 3))
        with pytest.raises(ValueError, match="cannot take"):
            hvd.allreduce(mine, op=hvd.Product)
    small = jnp.asarray(numbers(hvd.rank(), (5,)), jnp.float8_e4m3fn)
    for found in both(hvd.allgather, small):
        same(found.astype(jnp.float32), everybodys(ranks, (5,), "float32").reshape(-1))


@on_ranks(2, 3)
def test_a_group_travels_together_whatever_is_in_it() -> None:
    tree = {
        "matrix": numbers(hvd.rank(), (3, 4), "float32"),
        "more": [numbers(hvd.rank(), (), "float64"), numbers(hvd.rank(), (5,), "bfloat16")],
        "none": None,
        "whole": numbers(hvd.rank(), (0, 2), "int32"),
    }
    for found in both(hvd.grouped_allreduce, tree, op=hvd.Sum):
        assert jax.tree.structure(found) == jax.tree.structure(tree)
        for leaf, mine in zip(jax.tree.leaves(found), jax.tree.leaves(tree)):
            same(leaf, everybodys(list(range(hvd.size())), mine.shape).sum(0).astype(mine.dtype))
    assert hvd.grouped_allreduce([]) == []


@on_ranks(2, 3)
def test_allgather_joins_rows() -> None:
    check(
        hvd.allgather,
        lambda arrays, _: arrays.reshape(-1, *arrays.shape[2:]),
        ["bool", "uint8", "int64", "bfloat16", "float32"],
        [(), *ROWS],
    )


@on_ranks(2, 3)
def test_allgather_takes_any_number_of_rows_outside_of_programs() -> None:
    mine = numbers(hvd.rank(), (hvd.rank(), 2))
    expected = np.concatenate([numbers(rank, (rank, 2)) for rank in range(hvd.size())])
    same(hvd.allgather(mine), expected)


@on_ranks(2, 3)
def test_broadcast_gives_everybody_the_roots() -> None:
    last = hvd.size() - 1
    check(hvd.broadcast, lambda arrays, _: arrays[-1], ["bool", *WHOLE, *REAL], SHAPES, root_rank=last)


@on_ranks(2, 3)
def test_alltoall_exchanges_equal_shares() -> None:
    def received(arrays: Any, place: int) -> Any:
        each = arrays.shape[1] // len(arrays)
        return arrays[:, place * each : (place + 1) * each].reshape(arrays.shape[1:])

    check(hvd.alltoall, received, ["bool", "int32", "bfloat16", "float64"], ROWS)


@on_ranks(2, 3)
def test_alltoall_with_splits_says_what_came_from_whom() -> None:
    # Rank r sends r + k rows to rank k.
    splits = [hvd.rank() + rank for rank in range(hvd.size())]
    rows = np.repeat(np.arange(hvd.size()), splits) + 10 * hvd.rank()
    found, received = hvd.alltoall(rows, splits)
    expected = [10 * rank + hvd.rank() for rank in range(hvd.size()) for _ in range(rank + hvd.rank())]
    same(found, np.array(expected, np.int64))
    assert received.tolist() == [rank + hvd.rank() for rank in range(hvd.size())]


@on_ranks(2, 3)
def test_reducescatter_deals_rows_and_the_first_ranks_get_one_more() -> None:
    check(
        hvd.reducescatter,
        lambda arrays, place: np.array_split(arrays.sum(0), len(arrays))[place],
        ["int32", "float16", "float32"],
        [(6,), (7, 3), (1, 2), (0, 3)],
        op=hvd.Sum,
    )


@on_ranks(2, 3)
def test_join_waits_for_the_ranks_that_have_more_to_do() -> None:
    for _ in range(hvd.rank() + 1):
        close(hvd.allreduce(np.ones(3), op=hvd.Sum)[0] >= 1.0, True)
    assert hvd.join() == hvd.size() - 1


@on_ranks(2)
def test_names_match_calls_whatever_they_are_part_of() -> None:
    mine = np.full(3, hvd.rank() + 1.0)
    if hvd.rank() == 0:
        found = hvd.allreduce(mine, op=hvd.Sum, name="shared")
    else:
        found = jax.jit(lambda array: hvd.allreduce(2 * array / 2, op=hvd.Sum, name="shared"))(mine)
    same(found, np.full(3, 3.0))


@on_ranks(2)
def test_a_rank_that_compiles_again_still_meets_the_others() -> None:
    # The last batch of an epoch is shorter on one rank only, so that one compiles the step once more.
    step = jax.jit(lambda batch: hvd.allreduce(batch.mean(0), op=hvd.Sum))
    for rows in [4, 4, 4 - hvd.rank(), 4]:
        same(step(np.ones((rows, 2), np.float32)), np.full(2, 2.0, np.float32))


@on_ranks(2)
def test_numbers_and_lists_of_python_are_arrays_too() -> None:
    assert hvd.allreduce(2.5, op=hvd.Sum).item() == 5.0
    assert hvd.allgather([hvd.rank(), 7]).tolist() == [0, 7, 1, 7]
    with jax.disable_jit():
        assert hvd.allreduce(2.5, op=hvd.Sum).item() == 5.0
