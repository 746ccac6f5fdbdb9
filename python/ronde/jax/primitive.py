"""The one primitive behind all collectives, and what JAX's transformations do with it.

Collectives are linear in their operands, except for some reductions: a tangent takes the same way as its value, and a
cotangent that of the adjoint (:meth:`~ronde.jax.collectives.Collective.adjoint`). A batch travels in one piece.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from ronde.jax import _effects
from ronde.jax.collectives import Collective

__all__ = ["do"]

collective_p = Primitive("ronde_collective")
collective_p.multiple_results = True


def do(call: Collective, operands: Sequence[Any]) -> list[Any]:
    """Run a collective now, or make it part of the program that is being traced."""
    results: list[Any] = collective_p.bind(*operands, call=call)
    return results


@functools.lru_cache(maxsize=4096)
def _program(call: Collective) -> Callable[..., Any]:
    def eager(*operands: Any) -> Any:
        return do(call, operands)

    return jax.jit(eager)


@collective_p.def_impl
def _run(*operands: Any, call: Collective) -> Any:
    with jax.disable_jit(False), _effects.failing_once():
        return _program(call)(*operands)


@collective_p.def_effectful_abstract_eval
def _results(*operands: Any, call: Collective) -> Any:
    if not operands:
        return [], {_effects.EFFECT}
    results = zip(operands, call.results(operands))
    return [operand.update(shape=result.shape) for operand, result in results], {_effects.EFFECT}


def _derivative_of(call: Collective) -> None:
    if not call.is_linear:
        raise NotImplementedError(f"{call.title} has a derivative for Average and Sum only, not for {call}")


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Collective) -> Any:
    values = do(call, primals)
    places = [place for place, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    found: list[Any] = [ad.Zero(jax.typeof(value).to_tangent_aval()) for value in values]
    if places:
        _derivative_of(call)
        for place, tangent in zip(places, do(call.called("tangent"), [tangents[place] for place in places])):
            found[place] = tangent
    return values, found


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Collective) -> Any:
    _derivative_of(call)
    adjoint, factor = call.adjoint()
    places = [place for place, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    found: list[Any] = [ad.Zero(operand.aval) for operand in operands]
    if places:
        for place, cotangent in zip(places, do(adjoint.called("grad"), [cotangents[place] for place in places])):
            found[place] = _scaled(cotangent, factor)
    return found


def _scaled(values: Any, factor: float) -> Any:
    # What other ranks hold may not be finite, and must not come here by way of a multiplication by zero.
    if factor == 0.0:
        return jnp.zeros_like(values)
    return values if factor == 1.0 else values * jnp.asarray(factor, values.dtype)


def _batch(operands: Sequence[Any], dimensions: Sequence[int | None], *, call: Collective) -> Any:
    moved = list(operands)
    places = list(dimensions)
    for number, (operand, dimension) in enumerate(zip(operands, dimensions)):
        if dimension is not None:
            places[number] = call.batch_dimension(dimension)
            moved[number] = jnp.moveaxis(operand, dimension, places[number])
    return do(call, moved), places


ad.primitive_jvps[collective_p] = _jvp
ad.primitive_transposes[collective_p] = _transpose
batching.primitive_batchers[collective_p] = _batch
_effects.tie_down(collective_p)
