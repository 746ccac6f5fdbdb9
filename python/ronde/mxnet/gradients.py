"""How ``DistributedOptimizer`` and ``DistributedTrainer`` average gradients: one by one, or in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ronde._basics import basics
from ronde._build import split_list
from ronde._collectives import Average, Sum
from ronde.mxnet.ops import allreduce_, grouped_allreduce_
from ronde.process_sets import ProcessSet

__all__ = ["Averaging"]


class Averaging(NamedTuple):
    """The average over the ranks of a process set."""

    gradient_predivide_factor: float
    num_groups: int
    process_set: ProcessSet

    def check(self) -> None:
        """Refuse what cannot be meant."""
        if not self.gradient_predivide_factor > 0:
            raise ValueError(f"gradient_predivide_factor has to be positive, not {self.gradient_predivide_factor}")
        if self.num_groups < 0:
            raise ValueError(f"num_groups has to be 0 or more, not {self.num_groups}")
        # Raises outside of a job.
        basics.size()

    def start(self, names: Sequence[str], gradients: Sequence[Any]) -> None:
        """Average gradients in place, in the background; those of the first layers are needed first."""
        size = self.process_set.size()
        if size == 1:
            return
        # Divided by the factor before they are added up, and by what is left of the size afterwards.
        factor = self.gradient_predivide_factor
        how: dict[str, Any] = {"process_set": self.process_set, "op": Average}
        if factor != 1.0:
            how.update(op=Sum, prescale_factor=1.0 / factor, postscale_factor=factor / (size or 1))
        if self.num_groups == 0:
            for place, (name, gradient) in enumerate(zip(names, gradients)):
                allreduce_(gradient, name=name, priority=-place, **how)
            return
        together = list(zip(names, gradients))
        for place, group in enumerate(split_list(together, min(self.num_groups, len(together)))):
            name = f"{group[0][0]}:{group[-1][0]}"
            grouped_allreduce_([gradient for _, gradient in group], name=name, priority=-place, **how)
