"""Gradients of all ranks as one: of a tree of them, or of a function.

A tree travels in one call, or in as many as there are groups; the engine puts small arrays together anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ronde._build import split_list
from ronde._collectives import Average
from ronde.jax.compression import Compression, Compressor
from ronde.jax.ops import grouped_allreduce
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["grad", "reduce_gradients", "value_and_grad"]


def reduce_gradients(
    gradients: Any,
    op: int = Average,
    compression: type[Compressor] = Compression.none,
    groups: int = 0,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a tree of gradients over all ranks, and return one of the same structure.

    ``groups`` is in how many calls they travel, one by default. ``gradient_predivide_factor`` f divides by f before
    adding up and by size / f after. Leaves that are not numbers with a fraction are not reduced.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.reduce_gradients([jnp.ones(2)])[0].tolist()
    [1.0, 1.0]
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if groups < 0:
        raise ValueError(f"groups is a number of calls, not {groups}")
    leaves, structure = jax.tree.flatten(gradients)
    places = [place for place, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    for part in split_list(places, min(groups, len(places)) or 1):
        packed = [compression.compress(jnp.asarray(leaves[place])) for place in part]
        reduced = grouped_allreduce(
            [array for array, _ in packed],
            op,
            prescale_factor=1.0 / gradient_predivide_factor,
            postscale_factor=gradient_predivide_factor,
            process_set=process_set,
        )
        for place, array, (_, context) in zip(part, reduced, packed):
            leaves[place] = compression.decompress(array, context)
    return jax.tree.unflatten(structure, leaves)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    op: int = Average,
    compression: type[Compressor] = Compression.none,
    groups: int = 0,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> Callable[..., Any]:
    """Do as :func:`jax.value_and_grad`, with gradients that are reduced over all ranks. The value is this rank's own.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> value, gradient = hvd.value_and_grad(lambda weights: (weights**2).sum())(jnp.array([1.0, 2.0]))
    >>> value.item(), gradient.tolist()
    (5.0, [2.0, 4.0])
    """
    own = jax.value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        value, gradients = own(*args, **kwargs)
        return value, reduce_gradients(gradients, op, compression, groups, gradient_predivide_factor, process_set)

    return reduced


def grad(
    fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """Do as :func:`jax.grad`, with gradients that are reduced over all ranks; options as of :func:`value_and_grad`.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> hvd.grad(lambda weight: weight**2)(3.0).item()
    6.0
    """
    both = value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return reduced
