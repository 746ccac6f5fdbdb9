"""Makes distributed optimizers of users' ones.

The class of a distributed optimizer is a subclass of the user's, under the same name, and ``optimizer.__class__`` is
the user's class itself. That is what Keras asks for when it saves a model, so a saved model says nothing of this
package and can be loaded where it is not installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ronde._collectives import Average
from ronde.keras.compiling import watch_compiling
from ronde.keras.flavours import built, inner_of, is_keras3, is_legacy, own_variables
from ronde.keras.keras3 import DistributedKeras3, DistributedLossScale
from ronde.keras.reduction import Reduction, check_options
from ronde.keras.schedules import schedule_of
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["convert", "distributed", "is_distributed", "plain_class"]

# The distributed class of each class of optimizers, so that two optimizers of one class stay so.
_classes: dict[type[Any], type[Any]] = {}


def distributed(
    optimizer: Any,
    name: str | None,
    compression: Any,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    local_layers: Any = None,
    device_dense: str = "",
    device_sparse: str = "",
) -> Any:
    """Return a distributed optimizer with the configuration, and as far as there is one the state, of a user's."""
    if not (is_keras3(optimizer) or is_legacy(optimizer) or hasattr(optimizer, "aggregate_gradients")):
        raise ValueError(f"expected an optimizer of Keras, not {optimizer!r}")
    if num_groups:
        warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    check_options(op, gradient_predivide_factor, backward_passes_per_step, groups)
    reduction = Reduction(
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups,
        process_set,
        scale_local_gradients,
        device_dense,
        device_sparse,
    )
    if local_layers is not None:
        several = isinstance(local_layers, (list, tuple, set, frozenset))
        reduction.keep_layers_local(local_layers if several else [local_layers])
    return convert(_copied(optimizer, name), reduction)


def convert(optimizer: Any, reduction: Reduction) -> Any:
    """Make an optimizer reduce its gradients, itself and with all of its state, and return it."""
    watch_compiling(optimizer)
    inner = inner_of(optimizer)
    if inner is not None and not is_distributed(inner) and not is_keras3(optimizer):
        inner.__class__ = _distributed_class(inner)
    if not is_distributed(optimizer):
        optimizer.__class__ = _distributed_class(optimizer)
    optimizer._distribute(reduction)
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Tell whether an optimizer is one of those made here."""
    return type(optimizer) in _classes.values()


def plain_class(optimizer: Any) -> type[Any]:
    """Return the class of a user's optimizer, also of one that was distributed."""
    kind: type[Any] = optimizer.__class__
    return kind


def _distributed_class(optimizer: Any) -> type[Any]:
    kind = plain_class(optimizer)
    if kind not in _classes:
        details = {
            "__doc__": kind.__doc__,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__class__": property(lambda _: kind),
        }
        # Optimizers that scale losses have one of their own in Keras 2.
        metaclass: Any = type(kind)
        _classes[kind] = metaclass(kind.__name__, (_mixin_for(optimizer), kind), details)
    return _classes[kind]


def _mixin_for(optimizer: Any) -> type[Any]:
    if is_keras3(optimizer):
        return DistributedKeras3 if inner_of(optimizer) is None else DistributedLossScale
    from ronde.keras.keras2 import DistributedKeras2, DistributedLegacy, DistributedLossScale2

    if inner_of(optimizer) is not None:
        return DistributedLossScale2
    return DistributedLegacy if is_legacy(optimizer) else DistributedKeras2


def _copied(optimizer: Any, name: str | None) -> Any:
    """Return an optimizer like the user's."""
    kind = plain_class(optimizer)
    config = optimizer.get_config()
    if name is not None and "name" in config:
        config["name"] = name
    schedule = schedule_of(optimizer)
    if schedule is not None:
        # As it is: what it was serialised to may need classes that only the user's script has.
        config["learning_rate"] = schedule
    copy = kind.from_config(config)
    if is_keras3(optimizer):
        if built(optimizer):
            copy.build(list(optimizer._trainable_variables))
        for mine, theirs in zip(own_variables(copy), own_variables(optimizer)):
            mine.assign(theirs)
    elif built(optimizer):
        # Keras 2 does not know the variables that slots are for, so the copy has the same slots.
        copy.__dict__.update(optimizer.__dict__)
        if name is not None:
            object.__setattr__(copy, "_name" if is_legacy(optimizer) else "name", name)
    return copy
