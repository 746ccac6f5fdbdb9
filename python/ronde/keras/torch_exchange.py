"""Gradients of models that PyTorch runs: all are under way before the first is waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.keras.exchange import Exchange, Parcel
from ronde.torch import ops
from ronde.torch.handles import synchronize_all

__all__ = ["Passes", "divided", "in_passes", "reduced"]


@torch.no_grad()
def reduced(groups: Sequence[Sequence[Parcel]], exchange: Exchange) -> list[list[Any]]:
    """Return the reduced gradients of each group; those of one group travel together."""
    factors = (exchange.op, exchange.prescale_factor, exchange.postscale_factor, exchange.process_set)
    handles, contexts = [], []
    for group in groups:
        packed = [exchange.compression.compress(_dense(parcel.gradient)) for parcel in group]
        contexts.append([context for _, context in packed])
        tensors = [tensor for tensor, _ in packed]
        name = group[0].name
        if len(tensors) == 1:
            handles.append(ops.allreduce_async(tensors[0], None, name, *factors))
        else:
            handles.append(ops.grouped_allreduce_async(tensors, None, name, *factors))
    results = []
    for output, kept in zip(synchronize_all(handles), contexts):
        outputs = [output] if isinstance(output, torch.Tensor) else output
        results.append([exchange.compression.decompress(each, context) for each, context in zip(outputs, kept)])
    return results


def divided(gradient: Any, exchange: Exchange) -> Any:
    """Return a gradient divided by the number of ranks."""
    return gradient / exchange.process_set.size()


def in_passes(count: int, average: bool) -> Passes:
    """Return what adds up the gradients of several backward passes."""
    return Passes(count, average)


class Passes:
    """Adds up the gradients of several backward passes."""

    def __init__(self, count: int, average: bool) -> None:
        self._count = count
        self._average = average
        self._done = 0
        self._sums: dict[Any, Any] = {}

    @torch.no_grad()
    def collect(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Callable[[Sequence[Any]], list[Any]]
    ) -> list[Any]:
        """Add gradients to the sum, and return the reduced sum if this is the last pass of a step."""
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                known = self._sums.get(place)
                self._sums[place] = _dense(gradient).clone() if known is None else known.add_(_dense(gradient))
        self._done = (self._done + 1) % self._count
        if self._done:
            return list(gradients)
        sums, self._sums = self._sums, {}
        if self._average:
            sums = {place: total / self._count for place, total in sums.items()}
        return reduce([sums.get(place) for place in range(len(variables))])

    def finish(self, apply: Callable[[], Any], iterations: Any) -> None:
        """Call a function after the last pass of a step; after those before, only count the pass."""
        if self._done:
            iterations.assign_add(1)
        else:
            apply()


def _dense(gradient: Any) -> Any:
    return gradient.to_dense() if gradient.is_sparse else gradient
