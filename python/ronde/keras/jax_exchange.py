"""Gradients of models that JAX runs: inside the compiled step, all of them in one call, or one a group.

A step has no state but what goes in and comes out, so sums of several backward passes are variables of the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ronde.jax import grouped_allreduce
from ronde.keras.exchange import Exchange, Parcel

__all__ = ["Passes", "divided", "in_passes", "reduced"]


def reduced(groups: Sequence[Sequence[Parcel]], exchange: Exchange) -> list[list[Any]]:
    """Return the reduced gradients of each group; those of one group travel together."""
    alone = [parcel for group in groups if len(group) == 1 for parcel in group]
    results: dict[str, Any] = {}
    for group in [alone, *[group for group in groups if len(group) > 1]]:
        if group:
            results.update(zip([parcel.name for parcel in group], _reduced_group(group, exchange)))
    return [[results[parcel.name] for parcel in group] for group in groups]


def _reduced_group(group: Sequence[Parcel], exchange: Exchange) -> list[Any]:
    packed = [exchange.compression.compress(parcel.gradient) for parcel in group]
    outputs = grouped_allreduce(
        [tensor for tensor, _ in packed],
        exchange.op,
        group[0].name,
        exchange.prescale_factor,
        exchange.postscale_factor,
        exchange.process_set,
    )
    return [exchange.compression.decompress(output, context) for output, (_, context) in zip(outputs, packed)]


def divided(gradient: Any, exchange: Exchange) -> Any:
    """Return a gradient divided by the number of ranks."""
    return gradient / exchange.process_set.size()


def in_passes(count: int, average: bool) -> Passes:
    """Return what adds up the gradients of several backward passes."""
    return Passes(count, average)


class Passes:
    """Adds up the gradients of several backward passes, in variables that are not saved with the optimizer's."""

    def __init__(self, count: int, average: bool) -> None:
        self._count = count
        self._average = average
        self.variables: list[Any] = []

    def make_variables(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Add variables for the sums, and for how many passes are in them, to those of the optimizer."""
        self.variables = [optimizer.add_variable_from_reference(each, name="sum_of_passes") for each in variables]
        self.variables.append(optimizer.add_variable((), dtype="int32", name="passes_done"))

    def step(
        self,
        gradients: Sequence[Any],
        optimizer: Any,
        variables: Sequence[Any],
        reduce: Callable[[Sequence[Any]], list[Any]],
        apply: Callable[[list[Any]], None],
    ) -> None:
        """Add gradients to the sums, and apply these if this is the last pass of a step.

        What is applied is computed in every pass, and dropped in all but the last: only the exchange is worth a branch.
        """
        *sums, done = self.variables
        places = [place for place, gradient in enumerate(gradients) if gradient is not None]
        kept = [sums[optimizer._get_variable_index(variables[place])] for place in places]
        totals = [each.value + gradients[place] for each, place in zip(kept, places)]
        is_last = done.value + 1 == self._count

        def exchanged(parts: tuple[Any, ...]) -> tuple[Any, ...]:
            whole: list[Any] = [None] * len(gradients)
            for place, part in zip(places, parts):
                whole[place] = part / self._count if self._average else part
            return tuple(part for part in reduce(whole) if part is not None)

        found = jax.lax.cond(is_last, exchanged, lambda parts: parts, tuple(totals))
        before = [(each, each.value) for each in [*variables, *optimizer.variables]]
        iterations = optimizer._iterations.value
        whole = [None] * len(gradients)
        for place, part in zip(places, found):
            whole[place] = part
        apply(whole)
        for each, value in before:
            each.assign(jnp.where(is_last, each.value, value))
        optimizer._iterations.assign(iterations + 1)
        for each, total in zip(kept, totals):
            each.assign(jnp.where(is_last, jnp.zeros_like(total), total))
        done.assign(jnp.where(is_last, 0, done.value + 1))
