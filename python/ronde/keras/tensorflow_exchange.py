"""Gradients of models that TensorFlow runs, in a graph or eagerly.

In a graph every gradient is an operation of its own, which runs as soon as its input is there, and the engine fuses
what is ready. Eagerly one operation would wait for the other, so all dense gradients are one group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ronde.keras.exchange import Exchange, Parcel
from ronde.tensorflow import ops
from ronde.tensorflow.aggregation import LocalGradientAggregationHelperEager
from ronde.tensorflow.gradients import divided as _divided
from ronde.tensorflow.reductions import size_of

__all__ = ["Passes", "divided", "in_passes", "reduced"]


def reduced(groups: Sequence[Sequence[Parcel]], exchange: Exchange) -> list[list[Any]]:
    """Return the reduced gradients of each group; those of one group travel together."""
    parcels = [parcel._replace(gradient=_ready(parcel.gradient, exchange)) for group in groups for parcel in group]
    results: dict[str, Any] = {}
    if tf.executing_eagerly():
        together = [[parcel for parcel in parcels if not isinstance(parcel.gradient, tf.IndexedSlices)]]
    else:
        named = {parcel.name: parcel for parcel in parcels}
        together = [
            [named[name] for name, _ in group if not isinstance(named[name].gradient, tf.IndexedSlices)]
            for group in groups
        ]
    for group in together:
        results.update(zip([parcel.name for parcel in group], _reduced_group(group, exchange)))
    for parcel in parcels:
        if isinstance(parcel.gradient, tf.IndexedSlices):
            # Dividing before or after the sum makes no difference here: values are gathered, and then divided.
            results[parcel.name] = ops.allreduce(
                parcel.gradient,
                op=exchange.op,
                name=parcel.name,
                process_set=exchange.process_set,
                device_sparse=exchange.device_sparse,
                ignore_name_scope=True,
            )
    return [[results[parcel.name] for parcel in group] for group in groups]


def _reduced_group(group: Sequence[Parcel], exchange: Exchange) -> list[Any]:
    if not group:
        return []
    options: Any = {
        "op": exchange.op,
        "prescale_factor": exchange.prescale_factor,
        "postscale_factor": exchange.postscale_factor,
        "compression": exchange.compression,
        "process_set": exchange.process_set,
        "device_dense": exchange.device_dense,
        "name": group[0].name,
        "ignore_name_scope": True,
    }
    if len(group) == 1:
        return [ops.allreduce(group[0].gradient, **options)]
    return ops.grouped_allreduce([parcel.gradient for parcel in group], **options)


def _ready(gradient: Any, exchange: Exchange) -> Any:
    if exchange.sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    return gradient


def divided(gradient: Any, exchange: Exchange) -> Any:
    """Return a gradient divided by the number of ranks."""
    return _divided(gradient, size_of(exchange.process_set))


def in_passes(count: int, average: bool) -> Passes:
    """Return what adds up the gradients of several backward passes."""
    return Passes(count, average)


class Passes:
    """Adds up the gradients of several backward passes, in variables that no model or optimizer saves.

    Slices are added into dense sums.
    """

    def __init__(self, count: int, average: bool) -> None:
        self._reduce: Callable[[Sequence[Any]], list[Any]] | None = None
        self._sums = LocalGradientAggregationHelperEager(count, self._reduced, True, average)

    def collect(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Callable[[Sequence[Any]], list[Any]]
    ) -> list[Any]:
        """Add gradients to the sum; return the reduced sum if this is the last pass of a step, and zeros if not.

        Zeros, because whoever scales losses looks for infinities, which must not be found on one rank only.
        """
        present = [place for place, gradient in enumerate(gradients) if gradient is not None]

        def in_their_places(sums: Sequence[Any]) -> list[Any]:
            totals: list[Any] = [None] * len(gradients)
            for place, total in zip(present, sums):
                totals[place] = total
            return [total for total in reduce(totals) if total is not None]

        self._reduce = in_their_places
        sums = self._sums.compute_gradients(gradients, variables)
        complete = tf.equal(self._sums.counter, 0)
        return [None if total is None else tf.where(complete, total, tf.zeros_like(total)) for total in sums]

    def finish(self, apply: Callable[[], Any], iterations: Any) -> None:
        """Call a function after the last pass of a step; after those before, only count the pass."""

        def applied() -> None:
            apply()

        self._sums.apply_gradients(applied, SimpleNamespace(iterations=iterations))

    def _reduced(self, sums: Sequence[Any], _: Sequence[Any]) -> list[Any]:
        if self._reduce is None:
            raise RuntimeError("gradients were reduced before any were collected")
        return self._reduce(sums)
