"""Which Keras an object belongs to, and what every version of it does in its own way.

There are three kinds of optimizers: those of Keras 3, those of Keras 2 (from TensorFlow 2.11 on), and the ones before,
which Keras 2 keeps as ``tf.keras.optimizers.legacy``. They are told apart by what they can do and not by where they
come from: Keras 2 is a package of its own, a part of ``tensorflow``, or ``tf_keras``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy

__all__ = [
    "backend",
    "built",
    "identity",
    "inner_of",
    "is_keras3",
    "is_legacy",
    "learning_rate_of",
    "own_variables",
    "path_of",
    "sync_state",
    "to_numpy",
    "to_tensor",
    "weights_of",
]


def is_keras3(optimizer: Any) -> bool:
    """Tell whether an optimizer is of Keras 3."""
    return hasattr(optimizer, "stateless_apply")


def is_legacy(optimizer: Any) -> bool:
    """Tell whether an optimizer is of the kind that Keras 2 calls legacy."""
    return hasattr(optimizer, "_create_all_weights")


def backend() -> str:
    """Return what runs Keras' models: ``tensorflow``, ``torch`` or ``jax``; with Keras 2 always the first."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "config"):
        return "tensorflow"
    name: str = keras.config.backend()
    return name


def inner_of(optimizer: Any) -> Any | None:
    """Return the optimizer inside one that scales losses, or ``None``."""
    return getattr(optimizer, "inner_optimizer", None)


def built(optimizer: Any) -> bool:
    """Tell whether an optimizer has made its variables, and so may have a state."""
    if is_legacy(optimizer):
        return bool(optimizer.weights)
    return bool(getattr(optimizer, "built", False) or getattr(optimizer, "_built", False))


def identity(variable: Any) -> Any:
    """Return what is the same for a variable and for the one of TensorFlow that Keras 3 keeps in it."""
    inside = getattr(variable, "_value", None)
    if inside is not None and hasattr(inside, "_unique_id"):
        variable = inside
    return getattr(variable, "_unique_id", None) or id(variable)


def path_of(variable: Any) -> str:
    """Return the name of a variable with the layers that it is in."""
    return str(getattr(variable, "path", None) or variable.name)


def own_variables(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer: counters, slots, and a learning rate that can be set."""
    variables = optimizer.variables
    # A method of legacy optimizers; a list, or a list that can be called, of the others.
    found = list(variables() if callable(variables) and not isinstance(variables, list) else variables)
    if not is_keras3(optimizer):
        # Keras 2 does not count it among the variables.
        inner = inner_of(optimizer) or optimizer
        rate = inner._hyper.get("learning_rate") if is_legacy(inner) else inner._learning_rate
        if hasattr(rate, "assign"):
            found.append(rate)
    return found


def weights_of(model: Any) -> list[Any]:
    """Return what a model has learned: not its metrics, nor the seeds from which each rank draws its own numbers."""
    return list(model.weights)


def sync_state(model: Any) -> None:
    """Bring the variables up to date where a training keeps them elsewhere, as that of Keras on JAX does."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def to_numpy(value: Any) -> Any:
    """Return a tensor, a variable, a number or a list as an array."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "config") and not isinstance(value, (int, float, list, tuple)):
        value = keras.ops.convert_to_numpy(value)
    elif hasattr(value, "numpy"):
        value = value.numpy()
    return numpy.asarray(value)


def to_tensor(array: Any) -> Any:
    """Return an array as a tensor of what runs Keras' models."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "config"):
        return keras.ops.convert_to_tensor(array)
    return sys.modules["tensorflow"].convert_to_tensor(array)


def learning_rate_of(optimizer: Any) -> float:
    """Return the learning rate as it is now, also of a schedule."""
    rate = optimizer.learning_rate
    if callable(rate) and not hasattr(rate, "assign"):
        # Keras 2 hands out the schedule itself.
        rate = rate(optimizer.iterations)
    return float(to_numpy(rate))
