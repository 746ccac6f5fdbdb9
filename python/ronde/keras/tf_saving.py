"""``load_model`` for ``tf.keras``, which may be another Keras than ``import keras`` gives (``TF_USE_LEGACY_KERAS``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tensorflow import keras

from ronde.keras.compression import Compression
from ronde.keras.saving import load

__all__ = ["load_model"]


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type[Any]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model as :func:`ronde.keras.load_model` does."""
    del legacy_opts
    return load(filepath, custom_optimizers, custom_objects, compression, keras)
