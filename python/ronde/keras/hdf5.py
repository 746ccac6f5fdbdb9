"""The state of an optimizer in an ``.h5`` file.

Keras 3 writes it, but when it loads such a file it builds the optimizer for the variables that the model has outside
of its layers, which are none: the state is dropped, and the first step of training fails. It is read here once more.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

from ronde.keras.flavours import is_keras3, own_variables

__all__ = ["mended"]


def mended(model: Any, filepath: Any) -> Any:
    """Return the optimizer of a model that was loaded from a file, or one like it, if it has not come back whole."""
    optimizer = model.optimizer
    if not is_keras3(optimizer) or optimizer._trainable_variables or not model.trainable_variables:
        return optimizer
    if Path(filepath).suffix not in (".h5", ".hdf5"):
        return optimizer
    whole = optimizer.__class__.from_config(optimizer.get_config())
    whole.build(model.trainable_variables)
    values = _values_in(filepath)
    variables = own_variables(whole)
    if len(values) == len(variables):
        for variable, value in zip(variables, values):
            variable.assign(value)
    else:
        warnings.warn(f"{filepath} has no state that fits the optimizer, which starts afresh", stacklevel=4)
    return whole


def _values_in(filepath: Any) -> list[Any]:
    with importlib.import_module("h5py").File(filepath, "r") as file:
        if "optimizer_weights" not in file:
            return []
        group = file["optimizer_weights"]
        return [group[name][()] for name in _names_in(group)]


def _names_in(group: Any) -> list[str]:
    """Return the names of the values, in order; a long list is in several parts."""
    numbered = [part for part in group.attrs if part.startswith("weight_names")]
    parts = sorted(numbered, key=lambda part: int(part[len("weight_names") :] or 0))
    names = [name for part in parts for name in group.attrs[part]]
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]
