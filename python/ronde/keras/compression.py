"""``Compression`` of the framework that runs Keras' models: its compressors take that framework's tensors."""

from __future__ import annotations

import importlib
from typing import Any

from ronde.keras.flavours import backend

__all__ = ["Compression"]

_SERVED = ("tensorflow", "torch", "jax")


def _of_backend() -> Any:
    name = backend()
    if name not in _SERVED:
        raise ImportError(f"horovod.keras serves Keras on {', '.join(_SERVED)}, but KERAS_BACKEND is {name}")
    return importlib.import_module(f"ronde.{name}.compression").Compression


Compression = _of_backend()
