"""How gradients travel, whatever framework runs Keras; that framework's own way is in a module of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ronde.keras.flavours import backend
from ronde.process_sets import ProcessSet

__all__ = ["Carrier", "Exchange", "Parcel", "exchange_for"]


class Exchange(NamedTuple):
    """What is the same for all gradients of an optimizer."""

    op: int
    prescale_factor: float
    postscale_factor: float
    compression: Any
    sparse_as_dense: bool
    process_set: ProcessSet
    device_dense: str
    device_sparse: str


class Parcel(NamedTuple):
    """A gradient and the name by which ranks match it."""

    name: str
    gradient: Any


class Carrier(Protocol):
    """What the module for a framework offers."""

    def reduced(self, groups: Sequence[Sequence[Parcel]], exchange: Exchange) -> list[list[Any]]:
        """Return the reduced gradients of each group; those of one group travel together."""

    def divided(self, gradient: Any, exchange: Exchange) -> Any:
        """Return a gradient divided by the number of ranks."""

    def in_passes(self, count: int, average: bool) -> Any:
        """Return what adds up the gradients of several backward passes."""


_MODULES = {
    "tensorflow": "ronde.keras.tensorflow_exchange",
    "torch": "ronde.keras.torch_exchange",
    "jax": "ronde.keras.jax_exchange",
}


def exchange_for(name: str | None = None) -> Carrier:
    """Return the module for what runs Keras' models."""
    name = name or backend()
    if name not in _MODULES:
        raise NotImplementedError(f"models run by {name} cannot be trained on several ranks; use {', '.join(_MODULES)}")
    carrier: Any = importlib.import_module(_MODULES[name])
    return carrier
