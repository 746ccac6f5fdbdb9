"""The optimizer for Adasum, which combines not gradients but the steps that ranks would take.

When a parameter's gradient is complete, the wrapped optimizer runs for that parameter alone. What it changed, the
delta, is combined with those of the other ranks by Adasum, and ``step`` applies the result to the old value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from ronde._collectives import Adasum
from ronde.process_sets import global_process_set
from ronde.torch import ops
from ronde.torch.compression import Compression, Undo, pack
from ronde.torch.handles import forget, synchronize_all
from ronde.torch.hooked_optimizer import HookedOptimizer

__all__ = ["_DistributedAdasumOptimizer"]


class _DistributedAdasumOptimizer(HookedOptimizer):
    """Mixed in front of an optimizer class; see :func:`ronde.torch.optimizer.DistributedOptimizer`."""

    def __init__(
        self, params: Any, named_parameters: Any, compression: Any = Compression.none, backward_passes_per_step: int = 1
    ) -> None:
        super().__init__(params)
        self._compression = compression
        self.op = Adasum
        # Old value, handle and what undoes the compression, for each delta under way.
        self._flights: dict[Tensor, tuple[Tensor, int, Undo]] = {}
        self._attach(named_parameters, backward_passes_per_step, global_process_set)

    def synchronize(self) -> None:
        """Do nothing: until ``step`` applies the deltas there is nothing to look at."""

    def skip_synchronize(self) -> NoReturn:
        """Refuse: the exchange is the step."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the deltas and apply them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._lock, torch.no_grad():
            for parameter in self._passes_left:
                if parameter not in self._flights:
                    self._gradient_complete(parameter)
            flights, self._flights = self._flights, {}
            # Also where ranks disagree: the next step starts afresh.
            self._start_counting()
            deltas = synchronize_all(handle for _, handle, _ in flights.values())
            for (parameter, (before, _, undo)), delta in zip(flights.items(), deltas):
                parameter.copy_(before.add_(undo(delta)))
        return loss

    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Forget the gradients, with the arguments of the wrapped optimizer; not between backward and step."""
        if self._flights:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step(). "
                "This is prohibited as it can cause a race condition."
            )
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load what ``state_dict`` of this or of a plain optimizer gave, and forget exchanges that are under way."""
        for _, handle, _ in self._flights.values():
            forget(handle)
        self._flights = {}
        self._start_counting()
        super().load_state_dict(*args, **kwargs)

    @torch.no_grad()
    def _gradient_complete(self, parameter: Tensor) -> None:
        before = parameter.detach().clone(memory_format=torch.contiguous_format)
        self._step_alone(parameter)
        delta = parameter.detach() - before
        tensor, undo, wire = pack(self._compression, delta)
        name, place = self._name_of(parameter), self._places[parameter]
        handle = ops.start_allreduce(tensor, True, name, Adasum, 1.0, 1.0, self.process_set, place, wire=wire)
        self._flights[parameter] = (before, handle, undo)

    def _step_alone(self, parameter: Tensor) -> None:
        """Run the wrapped optimizer as if it had this parameter only."""
        everything = [group["params"] for group in self.param_groups]
        for group in self.param_groups:
            group["params"] = [other for other in group["params"] if other is parameter]
        try:
            super().step()
        finally:
            for group, members in zip(self.param_groups, everything):
                group["params"] = members
