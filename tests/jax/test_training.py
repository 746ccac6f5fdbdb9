"""Training on several ranks gives what one process gives with the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from values import close

import ronde.jax as hvd
from together import on_ranks

ROWS = 12
STEPS = 6


def batches(count: int = STEPS) -> list[tuple[Any, Any]]:
    """Return inputs and outputs of a few steps, the same on every rank."""
    random = np.random.default_rng(3)
    return [(random.normal(size=(ROWS, 4)), random.normal(size=(ROWS, 2))) for _ in range(count)]


def own(batch: tuple[Any, Any]) -> tuple[Any, Any]:
    inputs, outputs = batch
    return inputs[hvd.rank() :: hvd.size()], outputs[hvd.rank() :: hvd.size()]


def new_network() -> dict[str, Any]:
    random = np.random.default_rng(4)
    return {"first": random.normal(size=(4, 5)), "bias": np.zeros(5), "second": random.normal(size=(5, 2))}


def loss_of(network: dict[str, Any], batch: tuple[Any, Any]) -> Any:
    inputs, outputs = batch
    values = jnp.tanh(inputs @ network["first"] + network["bias"]) @ network["second"]
    return ((values - outputs) ** 2).mean()


def trained(optimizer: Any, steps: list[tuple[Any, Any]], wrap: Callable[..., Any] = jax.jit) -> dict[str, Any]:
    """Return the network after some steps."""

    def step(network: Any, state: Any, batch: Any) -> Any:
        gradients = jax.grad(loss_of)(network, batch)
        updates, state = optimizer.update(gradients, state, network)
        return optax.apply_updates(network, updates), state

    network = new_network()
    state = optimizer.init(network)
    compiled = wrap(step)
    for batch in steps:
        network, state = compiled(network, state, batch)
    return network


def assert_same(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-9) -> None:
    for name in expected:
        close(found[name], expected[name], tolerance)


@on_ranks(2, 3)
def test_optimizers_learn_what_one_process_learns() -> None:
    for optimizer in (optax.sgd(0.1, momentum=0.9), optax.adamw(0.01), optax.chain(optax.clip(0.5), optax.sgd(0.1))):
        alone = trained(optimizer, batches())
        assert_same(trained(hvd.DistributedOptimizer(optimizer), [own(batch) for batch in batches()]), alone)
    few = batches(2)
    eager = trained(hvd.DistributedOptimizer(optimizer), [own(batch) for batch in few], wrap=lambda step: step)
    assert_same(eager, trained(optimizer, few))


@on_ranks(2)
def test_every_option_learns_the_same() -> None:
    alone = trained(optax.sgd(0.1), batches())
    mine = [own(batch) for batch in batches()]
    for options in ({"groups": 2}, {"gradient_predivide_factor": 4.0}, {"groups": 100}):
        assert_same(trained(hvd.DistributedOptimizer(optax.sgd(0.1), **options), mine), alone)
    summed = hvd.DistributedOptimizer(optax.sgd(0.1 / hvd.size()), op=hvd.Sum)
    assert_same(trained(summed, mine), alone)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        found = trained(hvd.DistributedOptimizer(optax.sgd(0.1), compression=compression), mine)
        assert_same(found, alone, 0.02)
        assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(found))


@on_ranks(2)
def test_several_passes_make_one_step() -> None:
    steps = batches(6)
    halves = [(inputs[part], outputs[part]) for inputs, outputs in steps for part in (slice(0, 6), slice(6, 12))]
    mine = [own(half) for half in halves]
    alone = trained(optax.sgd(0.1, momentum=0.9), steps)
    averaging = hvd.DistributedOptimizer(
        optax.sgd(0.1, momentum=0.9), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    assert_same(trained(averaging, mine), alone)
    adding = hvd.DistributedOptimizer(optax.sgd(0.05, momentum=0.9), backward_passes_per_step=2)
    assert_same(trained(adding, mine), alone)
    # Between steps nothing changes.
    network = new_network()
    state = averaging.init(network)
    updates, state = averaging.update(jax.grad(loss_of)(network, mine[0]), state, network)
    assert all(not leaf.any() for leaf in jax.tree.leaves(updates))
    assert state.passes.item() == 1


@on_ranks(3)
def test_ranks_of_a_process_set_train_by_themselves() -> None:
    some = hvd.add_process_set([0, 2])
    if some.included():
        part = some.rank()
        mine = [(inputs[part::2], outputs[part::2]) for inputs, outputs in batches()]
        found = trained(hvd.DistributedOptimizer(optax.sgd(0.1), process_set=some), mine)
        assert_same(found, trained(optax.sgd(0.1), batches()))
    hvd.barrier()
    hvd.remove_process_set(some)


@on_ranks(2)
def test_adasum_combines_what_the_optimizer_makes_of_gradients() -> None:
    # Equal gradients: Adasum of equal updates is that update, whatever the number of ranks.
    found = trained(hvd.DistributedOptimizer(optax.sgd(0.1, momentum=0.9), op=hvd.Adasum), batches())
    assert_same(found, trained(optax.sgd(0.1, momentum=0.9), batches()), 1e-6)


@on_ranks(2)
def test_optimizers_pass_on_what_they_do_not_know() -> None:
    def update(updates: Any, state: Any, params: Any = None, *, scale: float) -> Any:
        del params
        return jax.tree.map(lambda leaf: scale * leaf, updates), state

    scaling = optax.GradientTransformationExtraArgs(lambda params: params, update)
    optimizer = hvd.DistributedOptimizer(scaling, op=hvd.Sum)
    updates, _ = optimizer.update(np.ones(2), optimizer.init(np.ones(2)), np.ones(2), scale=5.0)
    close(updates, np.full(2, 10.0))
    with pytest.raises(ValueError, match="at least 1"):
        hvd.DistributedOptimizer(optax.sgd(0.1), backward_passes_per_step=0)


@on_ranks(2)
def test_a_training_step_may_loop_over_batches_inside() -> None:
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
    inputs, outputs = (np.stack(parts) for parts in zip(*(own(batch) for batch in batches())))

    @jax.jit
    def epoch(network: Any) -> Any:
        def step(carry: Any, batch: Any) -> Any:
            network, state = carry
            loss, gradients = jax.value_and_grad(loss_of)(network, batch)
            updates, state = optimizer.update(gradients, state, network)
            return (optax.apply_updates(network, updates), state), hvd.allreduce(loss)

        (network, _), losses = jax.lax.scan(step, (network, optimizer.init(network)), (inputs, outputs))
        return network, losses

    network, losses = epoch(new_network())
    assert_same(network, trained(optax.sgd(0.1), batches()))
    close(losses[0], loss_of(new_network(), batches()[0]))
