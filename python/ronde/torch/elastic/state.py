"""The state of a training with PyTorch: model, optimizer, sampler and plain values.

What is more than a value has a *handler*, which knows how to save it, bring it back, and take it over from rank 0.
The table of handlers by type may be extended with ``set_handler_registry``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from ronde._basics import basics
from ronde.elastic import ObjectState
from ronde.torch.elastic.sampler import ElasticSampler
from ronde.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class StateHandler:
    """Knows how to save, restore and synchronise one kind of object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keep the object's state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Bring back the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over rank 0's state, and save it."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Handle another object from now on."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """Saves whatever has ``state_dict`` and ``load_state_dict``, as a deep copy: training goes on in the original."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Keep the object's state in memory."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Bring back the state that was saved last."""
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """Handles models."""

    def sync(self) -> None:
        """Take over rank 0's parameters and buffers, and save them."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """Handles optimizers."""

    def sync(self) -> None:
        """Take over rank 0's options and buffers, and save them."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """Handles samplers: rank 0, which has been here longest, knows how far the epoch has come."""

    def sync(self) -> None:
        """Go on where rank 0 is, with the ranks there are now, and save that."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), name="sampler_state"))
        self.save()


_registry: list[tuple[Any, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[Any, type[StateHandler]]]:
    """Return the table of types and their handlers; the first that fits is taken."""
    return _registry


def set_handler_registry(registry: list[tuple[Any, type[StateHandler]]]) -> None:
    """Replace the table of types and their handlers."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """State of a training: model, optimizer, and anything else by keyword, available as attributes.

    >>> state = TorchState(model=torch.nn.Linear(1, 1), epoch=0)
    >>> state.epoch = 5
    >>> state.restore(); state.epoch
    0
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        self._handlers: dict[str, StateHandler] = {}
        values = {}
        for name, value in {"model": model, "optimizer": optimizer, **kwargs}.items():
            handler = next((kind for fits, kind in _registry if isinstance(value, fits)), None)
            if handler is None:
                values[name] = value
            else:
                object.__setattr__(self, name, value)
                self._handlers[name] = handler(value)
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **values)

    def save(self) -> None:
        """Keep everything in memory, to come back to after a failure."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Bring back what was saved last."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Take over everything from rank 0."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", {}):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
