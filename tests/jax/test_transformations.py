"""JAX's transformations reach through collectives: derivatives, batches, loops, branches, rematerialisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from values import close, numbers, same

import ronde.jax as hvd
from together import on_ranks

# Rows that every number of ranks here can share out, evenly and not.
EVEN, UNEVEN = 12, 7


def linear_ones() -> list[tuple[Callable[[Any], Any], int]]:
    """Return the collectives that are linear, and how many rows each is given."""
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    return [
        (hvd.allreduce, UNEVEN),
        (lambda rows: hvd.allreduce(rows, op=hvd.Sum, **factors), UNEVEN),
        (lambda rows: hvd.grouped_allreduce([rows, 2 * rows])[1], UNEVEN),
        (hvd.allgather, UNEVEN),
        (lambda rows: hvd.broadcast(rows, root_rank=1), UNEVEN),
        (hvd.alltoall, EVEN),
        (hvd.reducescatter, EVEN),
        (lambda rows: hvd.reducescatter(rows, op=hvd.Sum, **factors), UNEVEN),
    ]


def everybodys_product(left: Any, right: Any) -> float:
    """Return the inner product over all ranks."""
    return hvd.allreduce((left * right).sum(), op=hvd.Sum).item()


@on_ranks(2, 3)
def test_cotangents_take_the_way_of_the_adjoint() -> None:
    random = np.random.default_rng(hvd.rank())
    for function, rows in linear_ones():
        value, tangent = random.normal(size=(2, rows, 3))
        result, forward = jax.jvp(function, [value], [tangent])
        close(forward, function(tangent))
        cotangent = random.normal(size=result.shape)
        (backward,) = jax.vjp(function, value)[1](cotangent)
        assert backward.shape == value.shape
        close(everybodys_product(forward, cotangent), everybodys_product(tangent, backward))
        (compiled,) = jax.jit(lambda value, cotangent, function=function: jax.vjp(function, value)[1](cotangent))(
            value, cotangent
        )
        close(compiled, backward)


@on_ranks(2)
def test_second_derivatives_and_names() -> None:
    def energy(weights: Any) -> Any:
        return (hvd.allreduce(weights, op=hvd.Sum, name="weights") ** 3).sum()

    weights = np.array([1.0, 2.0]) * (hvd.rank() + 1)
    total = np.array([3.0, 6.0])
    # Both ranks have the same energy of the sum, and what is differentiated is that of both together.
    close(jax.grad(energy)(weights), 2 * 3 * total**2)
    close(jax.jit(jax.grad(energy))(weights), 2 * 3 * total**2)
    hessian = jax.jacfwd(jax.grad(energy))(weights)
    assert hessian.shape == (2, 2)
    close(hessian[0, 1], 0.0)
    assert hessian[0, 0] > 0.0


@on_ranks(2)
def test_only_what_is_linear_has_a_derivative() -> None:
    for op in (hvd.Max, hvd.Min, hvd.Product, hvd.Adasum):
        with pytest.raises(NotImplementedError, match="derivative"):
            jax.grad(lambda value, op=op: hvd.allreduce(value, op=op).sum())(np.ones(2))
    # Where no derivative is asked for, none is needed.
    found = jax.grad(lambda value: value.sum() * hvd.allreduce(jax.lax.stop_gradient(value), op=hvd.Max)[0])(np.ones(2))
    close(found, np.ones(2))


@on_ranks(2)
def test_whole_numbers_in_a_group_have_no_tangent() -> None:
    def mixed(reals: Any, wholes: Any) -> Any:
        first, second = hvd.grouped_allreduce([reals, wholes], op=hvd.Sum)
        return (first * second).sum()

    gradient = jax.grad(mixed)(np.array([1.0, 2.0]), np.array([3, 4]))
    close(gradient, 2 * 2 * np.array([3.0, 4.0]))


@on_ranks(2, 3)
def test_a_batch_travels_in_one_piece() -> None:
    batch = np.random.default_rng(hvd.rank()).normal(size=(4, 12, 3))
    for function, rows in linear_ones():
        for axis in (0, 1, 2):
            one_by_one = np.stack([np.asarray(function(part[:rows])) for part in batch])
            moved = np.moveaxis(batch[:, :rows], 0, axis)
            close(jax.vmap(function, in_axes=axis)(moved), one_by_one)
    scalars = jax.vmap(lambda value: hvd.allgather(value))(np.arange(4.0))
    assert scalars.shape == (4, hvd.size())


@on_ranks(2)
def test_only_some_of_a_group_may_be_batched() -> None:
    def mixed(rows: Any, other: Any) -> Any:
        return hvd.grouped_allreduce((rows, other), op=hvd.Sum)

    rows, other = jax.vmap(mixed, in_axes=(0, None), out_axes=(0, None))(np.ones((3, 2)), np.ones(5))
    close(rows, np.full((3, 2), 2.0))
    close(other, np.full(5, 2.0))


@on_ranks(2, 3)
def test_loops_and_branches() -> None:
    size = hvd.size()

    def body(total: Any, row: Any) -> Any:
        total = total + hvd.allreduce(row, op=hvd.Sum)
        return total, hvd.allgather(row[0])

    rows = np.arange(10.0).reshape(5, 2) + hvd.rank()
    everybody = np.stack([np.arange(10.0).reshape(5, 2) + rank for rank in range(size)])
    total, firsts = jax.jit(lambda rows: jax.lax.scan(body, jnp.zeros(2), rows))(rows)
    close(total, everybody.sum((0, 1)))
    close(firsts, everybody[:, :, 0].T)

    def sum_below(limit: float) -> Any:
        # The condition asks all ranks as well, so they leave the loop together.
        return jax.lax.while_loop(
            lambda value: hvd.allreduce(value, op=hvd.Max) < limit,
            lambda value: value + hvd.allreduce(1.0, op=hvd.Sum),
            jnp.asarray(float(hvd.rank())),
        )

    steps = next(step for step in range(100) if size - 1 + step * size >= 20)
    close(jax.jit(sum_below, static_argnums=0)(20.0), hvd.rank() + steps * size)

    branch = jax.jit(
        lambda flag, value: jax.lax.cond(
            flag, lambda value: hvd.allreduce(value, op=hvd.Sum), lambda value: hvd.broadcast(value, 0), value
        )
    )
    close(branch(True, float(hvd.rank())), sum(range(size)))
    close(branch(False, float(hvd.rank())), 0.0)
    close(
        jax.jit(lambda value: jax.lax.fori_loop(0, 3, lambda _, v: hvd.allreduce(v, op=hvd.Sum), value))(1.0), size**3
    )


@on_ranks(2)
def test_derivatives_of_loops_branches_and_rematerialised_functions() -> None:
    def layer(value: Any, weight: Any) -> Any:
        return jnp.tanh(hvd.allreduce(value * weight, op=hvd.Sum)), None

    def plain(weights: Any, value: Any) -> Any:
        for weight in weights:
            value, _ = layer(value, weight)
        return value.sum()

    weights, value = np.array([0.3, 0.5, 0.7]), np.array([0.1, 0.2]) + 0.1 * hvd.rank()
    expected = jax.grad(plain)(weights, value)

    def scanned(weights: Any, value: Any) -> Any:
        return jax.lax.scan(layer, value, weights)[0].sum()

    def checkpointed(weights: Any, value: Any) -> Any:
        return jax.lax.scan(jax.checkpoint(layer), value, weights)[0].sum()

    def rematerialised(weights: Any, value: Any) -> Any:
        return jax.checkpoint(plain)(weights, value)

    def branched(weights: Any, value: Any) -> Any:
        return jax.lax.cond(value[0] < 1.0, plain, lambda _, value: value.sum(), weights, value)

    for function in (plain, scanned, checkpointed, rematerialised, branched):
        close(jax.jit(jax.grad(function))(weights, value), expected)
    close(jax.grad(rematerialised)(weights, value), expected)


@on_ranks(2)
def test_functions_with_their_own_derivative() -> None:
    @jax.custom_vjp
    def summed(value: Any) -> Any:
        return hvd.allreduce(value, op=hvd.Sum)

    # The gradient of a layer that is split over the ranks: everybody has it already.
    summed.defvjp(lambda value: (hvd.allreduce(value, op=hvd.Sum), None), lambda _, cotangent: (cotangent,))
    close(jax.jit(jax.grad(lambda value: (summed(value) ** 2).sum()))(np.ones(3)), np.full(3, 4.0))


@on_ranks(2)
def test_nested_functions_that_are_compiled_once_and_called_often() -> None:
    inner = jax.jit(lambda value: hvd.allreduce(value, op=hvd.Sum) + 1.0)

    @jax.jit
    def outer(value: Any) -> Any:
        return inner(inner(value)) + inner(2.0 * value)

    close(outer(np.ones(2)), np.full(2, (2 * 3 + 1) + (4 + 1)))
    close(outer.lower(np.ones(2)).compile()(np.ones(2)), np.full(2, 12.0))


@on_ranks(2)
def test_gradients_of_functions_are_reduced() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        return ((batch @ weights["w"]) ** 2).mean(), batch.shape

    batch = np.random.default_rng(hvd.rank()).normal(size=(6, 3))
    weights = {"w": np.array([1.0, -2.0, 0.5])}
    together = np.concatenate([np.random.default_rng(rank).normal(size=(6, 3)) for rank in range(2)])
    expected = jax.grad(lambda weights: loss(weights, together)[0])(weights)["w"]
    (value, shape), gradients = jax.jit(hvd.value_and_grad(loss, has_aux=True))(weights, batch)
    close(gradients["w"], expected)
    close(value, loss(weights, batch)[0])
    assert tuple(shape) == (6, 3)
    gradients, _ = hvd.grad(loss, has_aux=True, compression=hvd.Compression.bf16)(weights, batch)
    close(gradients["w"], expected, 0.05)
    assert gradients["w"].dtype == np.float64
    close(hvd.grad(lambda weights: loss(weights, batch)[0], op=hvd.Sum, groups=2)(weights)["w"], 2 * expected)
    same(hvd.reduce_gradients([numbers(hvd.rank(), (3,), "int32")])[0], numbers(hvd.rank(), (3,), "int32"))
