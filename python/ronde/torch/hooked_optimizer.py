"""What the distributed optimizers share: names for parameters, and a call when a gradient is complete.

The classes here are mixed in front of the user's optimizer class, so ``super()`` is that class, and everything it
offers stays. A parameter is reduced by the optimizer that was made for it last: wrapping a model a second time takes
the hooks away from the first wrapper.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ronde.process_sets import ProcessSet
from ronde.torch.hooks import GradientHook

__all__ = ["HookedOptimizer"]

# Which optimizer has its hook on a parameter.
_owners: Any = WeakIdKeyDictionary()


def _elastic() -> bool:
    """Tell whether the number of ranks may change, so that one rank alone must be ready for others."""
    return os.environ.get("HOROVOD_ELASTIC", "").strip().lower() in ("1", "true", "yes", "on")


class HookedOptimizer(torch.optim.Optimizer):
    """Counts backward passes by parameter and calls ``_gradient_complete`` after the last one of a step."""

    def _attach(self, named_parameters: Any, backward_passes_per_step: int, process_set: ProcessSet) -> None:
        """Name the parameters and start to watch those that are trained."""
        self.backward_passes_per_step = backward_passes_per_step
        self.process_set = process_set
        # Gradients of several devices are computed by as many threads.
        self._lock = threading.RLock()
        self._given_names = _checked_names(named_parameters)
        self._all_are_named = named_parameters is not None
        self._names: dict[Tensor, str] = {}
        # The place of a parameter in the forward pass: what is used first is wanted back first.
        self._places: dict[Tensor, int] = {}
        self._passes_left: dict[Tensor, int] = {}
        self._hooks: dict[Tensor, GradientHook] = {}
        self._frozen: list[Tensor] = []
        self._prefix: str | None = None
        size = process_set.size() or 1
        self._distributed = bool(process_set.included()) and (size > 1 or _elastic())
        self._adopt()

    def _adopt(self) -> list[Tensor]:
        """Take in parameters that are new or no longer frozen, and return them in order."""
        unnamed = []
        for group_number, group in enumerate(self.param_groups):
            for number, parameter in enumerate(group["params"]):
                if parameter not in self._names:
                    name = self._given_names.get(parameter)
                    if name is None and self._all_are_named:
                        unnamed.append(f"number {number} of group {group_number}, {tuple(parameter.shape)}")
                    self._names[parameter] = name or f"allreduce.noname.{group_number}.{number}"
                    self._places[parameter] = len(self._places)
        if unnamed:
            raise ValueError(
                "named_parameters was specified, but one or more model parameters were not named: " + ", ".join(unnamed)
            )
        # Parameters that come later may have names of their own making.
        self._all_are_named = False
        if self._prefix is None:
            self._prefix = self._make_unique()
        for place, parameter in enumerate(self._given_names):
            self._places[parameter] = place
        self._frozen = [parameter for parameter in self._names if not parameter.requires_grad]
        fresh = [p for p in self._names if p.requires_grad and p not in self._passes_left] if self._distributed else []
        for parameter in fresh:
            self._passes_left[parameter] = self.backward_passes_per_step
            self._watch(parameter)
        return fresh

    def _make_unique(self) -> str:
        """Return what to put before the names, so that no other optimizer of the process set uses the same.

        All that were ever made count, not only those alive: when an object is collected differs between ranks.
        """
        others = self.process_set.names_of_optimizers
        names = set(self._names.values())
        prefix = f"optimizer{len(others)}." if any(names & other for other in others) else ""
        others.append(names)
        return prefix

    def _name_of(self, parameter: Tensor) -> str:
        return f"{self._prefix}{self._names[parameter]}"

    def _watch(self, parameter: Tensor) -> None:
        owner = _owners.get(parameter)
        previous = owner() if owner is not None else None
        if previous is not None and previous is not self:
            previous._release(parameter)
        _owners[parameter] = weakref.ref(self)
        self._hooks[parameter] = GradientHook(parameter, functools.partial(_arrived, weakref.ref(self)))

    def _release(self, parameter: Tensor) -> None:
        """Stop watching a parameter that another optimizer has taken over."""
        self._hooks.pop(parameter).remove()
        del self._passes_left[parameter]

    def _count_pass(self, parameter: Tensor) -> None:
        with self._lock:
            left = self._passes_left[parameter] - 1
            if left < 0:
                raise AssertionError(
                    "Gradients were computed more than backward_passes_per_step times before call to step(). "
                    "Increase backward_passes_per_step to accumulate gradients locally."
                )
            self._passes_left[parameter] = left
            if left == 0:
                self._gradient_complete(parameter)

    def _gradient_complete(self, parameter: Tensor) -> None:
        raise NotImplementedError

    def _start_counting(self) -> None:
        """Expect as many backward passes as a step has, for every parameter."""
        for parameter in self._passes_left:
            self._passes_left[parameter] = self.backward_passes_per_step

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Exchange gradients after this many backward passes from now on."""
        self.backward_passes_per_step = passes
        self._start_counting()


def _arrived(reference: weakref.ref[HookedOptimizer], parameter: Tensor) -> None:
    optimizer = reference()
    if optimizer is not None:
        optimizer._count_pass(parameter)


def _checked_names(named_parameters: Iterable[tuple[str, Tensor]] | None) -> dict[Tensor, str]:
    """Return the given names by parameter; of a parameter that is listed twice, the first."""
    pairs = list(named_parameters or ())
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(repeated)}")
    found: dict[Tensor, str] = {}
    for name, parameter in pairs:
        found.setdefault(parameter, name)
    return found
