"""What is done to the gradients of a distributed optimizer before they are applied.

A :class:`Reduction` holds the options that ``DistributedOptimizer`` was given. It deals the gradients into those that
stay on this rank and groups of those that travel together, gives them names, and leaves the exchange itself to the
module for the framework that runs Keras (:mod:`ronde.keras.exchange`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ronde._build import split_list
from ronde._collectives import Average, Sum
from ronde.keras.exchange import Exchange, Parcel, exchange_for
from ronde.keras.flavours import identity, path_of
from ronde.keras.names import gradient_names
from ronde.process_sets import ProcessSet

__all__ = ["Reduction", "check_options"]


class Reduction:
    """The options of a distributed optimizer, and the gradients' way through them."""

    def __init__(
        self,
        compression: Any,
        sparse_as_dense: bool,
        gradient_predivide_factor: float,
        op: int,
        backward_passes_per_step: int,
        average_aggregated_gradients: bool,
        groups: int | Sequence[Sequence[Any]] | None,
        process_set: ProcessSet,
        scale_local_gradients: bool,
        device_dense: str = "",
        device_sparse: str = "",
    ) -> None:
        self.backward_passes_per_step = backward_passes_per_step
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self._groups = groups
        # What runs the model; the optimizer that takes this up knows.
        self.framework: str | None = None
        self._exchange = Exchange(
            op,
            1.0 / gradient_predivide_factor,
            gradient_predivide_factor,
            compression,
            sparse_as_dense,
            process_set,
            device_dense,
            device_sparse,
        )
        self._local_variables: set[Any] = set()
        self._local_layers: list[Any] = []
        self._names: dict[tuple[Any, ...], list[str]] = {}

    def keep_local(self, variable: Any) -> None:
        """Apply this rank's own gradient to a variable from now on."""
        self._local_variables.add(identity(variable))

    def keep_layers_local(self, layers: Iterable[Any]) -> None:
        """Apply this rank's own gradients to layers, which may have no variables yet."""
        self._local_layers.extend(layers)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients to apply, in the same order; where there is none, there is none afterwards."""
        results = list(gradients)
        if self.process_set.included() is False:
            return results
        local = self._local_variables | {
            identity(variable) for layer in self._local_layers for variable in layer.trainable_weights
        }
        carrier = exchange_for(self.framework)
        parcels = {}
        for place, (name, gradient, variable) in enumerate(zip(self._names_of(variables), gradients, variables)):
            if gradient is None:
                continue
            if identity(variable) not in local:
                parcels[place] = Parcel(name, gradient)
            elif self.scale_local_gradients:
                results[place] = carrier.divided(gradient, self._exchange)
        groups = self._dealt(list(parcels), variables)
        carried = carrier.reduced([[parcels[place] for place in group] for group in groups], self._exchange)
        for group, tensors in zip(groups, carried):
            for place, tensor in zip(group, tensors):
                results[place] = tensor
        return results

    def _names_of(self, variables: Sequence[Any]) -> list[str]:
        key = tuple(identity(variable) for variable in variables)
        names = self._names.get(key)
        if names is None:
            names = gradient_names([path_of(variable) for variable in variables], self.process_set)
            self._names[key] = names
        return names

    def _dealt(self, places: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Deal the places of gradients into groups: one each, a number of groups, or as the lists of variables say."""
        if not self._groups:
            return [[place] for place in places]
        if isinstance(self._groups, int):
            return [list(part) for part in split_list(places, self._groups) if part]
        group_of = {identity(variable): number for number, members in enumerate(self._groups) for variable in members}
        dealt: dict[Any, list[int]] = {}
        for place in places:
            dealt.setdefault(group_of.get(identity(variables[place]), f"alone {place}"), []).append(place)
        return list(dealt.values())


def check_options(op: int, gradient_predivide_factor: float, backward_passes_per_step: int, groups: Any) -> None:
    """Refuse what cannot be done, before anything is built."""
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step has to be at least 1, not {backward_passes_per_step}")
    if groups is None:
        return
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups > 0:
            return
    elif isinstance(groups, list) and all(isinstance(members, list) for members in groups):
        known = [identity(variable) for members in groups for variable in members]
        if len(set(known)) != len(known):
            raise ValueError("a variable can only appear once in groups")
        return
    raise ValueError("groups should be a positive integer or a list of list of variables")
