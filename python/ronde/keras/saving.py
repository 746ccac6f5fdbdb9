"""Loading models: as Keras does it, and then the optimizer is made a distributed one, with the state it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ronde._collectives import Average
from ronde.keras.compiling import forbid_xla
from ronde.keras.hdf5 import mended
from ronde.keras.optimizer import convert
from ronde.keras.reduction import Reduction
from ronde.process_sets import global_process_set

__all__ = ["load"]


def load(
    filepath: Any,
    custom_optimizers: Iterable[type[Any]] | None,
    custom_objects: Mapping[str, Any] | None,
    compression: Any,
    keras: Any,
) -> Any:
    """Load a model with the given Keras: the package itself, or ``tf.keras``."""
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        reduction = Reduction(compression, False, 1.0, Average, 1, False, None, global_process_set, True)
        model.optimizer = convert(mended(model, filepath), reduction)
        forbid_xla(model)
    return model
