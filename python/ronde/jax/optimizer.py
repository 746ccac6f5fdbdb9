"""``DistributedOptimizer``: makes of an optax optimizer one that trains on all ranks together.

It is an ordinary gradient transformation: pure, and inside of ``jax.jit`` the exchange is part of the program. Optax is
imported when it is first asked for; the collectives do without.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ronde._collectives import Adasum, Average
from ronde.jax.compression import Compression, Compressor
from ronde.jax.gradients import reduce_gradients
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["AggregationState", "DistributedOptimizer"]


class AggregationState(NamedTuple):
    """What an optimizer keeps that adds gradients up over several passes before it reduces them."""

    inner: Any
    """State of the wrapped optimizer."""
    gradients: Any
    """The sum so far, of this rank alone."""
    passes: Any
    """How many passes it holds."""


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    op: int = Average,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int = 0,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optax transformation that reduces gradients over all ranks, and then does what ``optimizer`` does.

    ``op`` is Average, Sum, Adasum, Min, Max or Product. With Adasum it is the updates that are combined, after the
    optimizer has made them of this rank's own gradients. ``compression`` says how they travel, ``groups`` in how many
    calls (one by default), and ``gradient_predivide_factor`` f divides by f before adding up and by size / f after.

    With ``backward_passes_per_step`` k, gradients of k calls are added up on this rank, or averaged with
    ``average_aggregated_gradients``; only every k-th call reduces them and steps, and the others return zeros.

    The state is that of ``optimizer``, or with k > 1 an :class:`AggregationState` around it.

    >>> import jax.numpy as jnp, optax, ronde.jax as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(optax.sgd(0.5))
    >>> weights = jnp.array([1.0, 2.0])
    >>> updates, state = optimizer.update(jnp.ones(2), optimizer.init(weights), weights)
    >>> optax.apply_updates(weights, updates).tolist()
    [0.5, 1.5]
    """
    try:
        import optax
    except ImportError as error:
        raise ImportError(
            "DistributedOptimizer needs optax, which is not installed; `pip install optax` gets it"
        ) from error
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is at least 1, not {backward_passes_per_step}")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    inner = optax.with_extra_args_support(optimizer)

    def reduced(tree: Any) -> Any:
        return reduce_gradients(tree, op, compression, groups, gradient_predivide_factor, process_set)

    def step(gradients: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        if op == Adasum:
            updates, state = inner.update(gradients, state, params, **extra)
            return reduced(updates), state
        return inner.update(reduced(gradients), state, params, **extra)

    if backward_passes_per_step == 1:
        return optax.GradientTransformationExtraArgs(inner.init, step)

    def init(params: Any) -> AggregationState:
        return AggregationState(inner.init(params), jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32))

    def aggregate(gradients: Any, state: AggregationState, params: Any = None, **extra: Any) -> Any:
        total = jax.tree.map(jnp.add, state.gradients, gradients)
        zeros = jax.tree.map(jnp.zeros_like, total)

        def last() -> Any:
            divisor = backward_passes_per_step if average_aggregated_gradients else 1
            mean = jax.tree.map(lambda part: part / divisor, total)
            updates, after = step(mean, state.inner, params, **extra)
            return _like(updates, zeros), AggregationState(after, zeros, jnp.zeros((), jnp.int32))

        def earlier() -> Any:
            return zeros, AggregationState(state.inner, total, state.passes + 1)

        # All ranks have made as many passes, so they agree on which this is.
        return jax.lax.cond(state.passes == backward_passes_per_step - 1, last, earlier)

    return optax.GradientTransformationExtraArgs(init, aggregate)


def _like(tree: Any, other: Any) -> Any:
    """Give the leaves of a tree the types of another's: both ways out of a branch have to agree."""
    return jax.tree.map(lambda leaf, model: jnp.asarray(leaf, model.dtype), tree, other)
