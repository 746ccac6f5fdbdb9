"""Learning rates of optimizers that callbacks adjust: a number that can be set, or a schedule that is multiplied.

The rate that a ``LearningRateSchedule`` of Keras gives is multiplied by a factor, which is a variable, so a step that
has been compiled sees it change. Like an optimizer here, such a schedule is saved as what the user has made.
"""

from __future__ import annotations

import sys
from typing import Any

from ronde.keras.flavours import backend, inner_of, is_keras3, is_legacy, learning_rate_of, to_numpy

__all__ = ["Rate", "rate_for", "schedule_of"]


class Rate:
    """The learning rate of an optimizer, as ``base`` times a multiplier; it may be set anew for each batch."""

    def __init__(self, optimizer: Any, base: float) -> None:
        self._optimizer = optimizer
        self._base = base

    def multiply(self, multiplier: float) -> float:
        """Set the rate, and return by how much it is larger than before."""
        old, new = learning_rate_of(self._optimizer), self._base * multiplier
        rate = self._optimizer.learning_rate
        if hasattr(rate, "assign"):
            rate.assign(new)
        else:
            self._optimizer.learning_rate = new
        return new / old if old else 1.0


class _ScheduledRate(Rate):
    """The rate of a schedule, times a multiplier; the schedule knows the base."""

    def __init__(self, factor: Any) -> None:
        self._factor = factor

    def multiply(self, multiplier: float) -> float:
        """Set the factor, and return by how much it is larger than before."""
        old = float(to_numpy(self._factor))
        self._factor.assign(multiplier)
        return multiplier / old if old else 1.0


def rate_for(model: Any, base: float) -> Rate:
    """Return the learning rate of a model's optimizer, ready to be adjusted."""
    optimizer = inner_of(model.optimizer) or model.optimizer
    schedule = schedule_of(optimizer)
    if schedule is None:
        return Rate(optimizer, base)
    if not hasattr(schedule, "get_config") or (is_keras3(optimizer) and backend() == "jax"):
        raise ValueError(
            "the learning rate of this optimizer is a function, which a compiled step does not look at again; make the "
            "optimizer with a number for a callback to adjust, or put warm-up and decay into the function"
        )
    if not isinstance(schedule, _Multiplied):
        schedule = _multiplied(schedule, _new_factor(optimizer))
        if is_legacy(optimizer):
            optimizer._hyper["learning_rate"] = schedule
        else:
            optimizer._learning_rate = schedule
        # A step that was compiled before would go on with the schedule as it was.
        model.make_train_function(force=True)
    return _ScheduledRate(schedule.factor)


def schedule_of(optimizer: Any) -> Any | None:
    """Return the schedule, or other function, that an optimizer was made with instead of a number, or ``None``."""
    if inner_of(optimizer) is not None:
        return None
    rate = optimizer._hyper.get("learning_rate") if is_legacy(optimizer) else optimizer._learning_rate
    return rate if callable(rate) and not hasattr(rate, "assign") else None


class _Multiplied:
    """Comes before the class of the user's schedule."""

    schedule: Any
    factor: Any

    def __call__(self, step: Any) -> Any:
        return self.factor * self.schedule(step)

    def get_config(self) -> Any:
        """Return what the user's schedule returns."""
        return self.schedule.get_config()


def _multiplied(schedule: Any, factor: Any) -> Any:
    kind = schedule.__class__
    details = {"__module__": kind.__module__, "__class__": property(lambda _: kind)}
    changed: Any = object.__new__(type(kind.__name__, (_Multiplied, kind), details))
    changed.schedule, changed.factor = schedule, factor
    return changed


def _new_factor(optimizer: Any) -> Any:
    if is_keras3(optimizer):
        return sys.modules["keras"].Variable(1.0, trainable=False, dtype="float32", name="learning_rate_factor")
    tensorflow = sys.modules["tensorflow"]
    return tensorflow.Variable(1.0, trainable=False, dtype="float32", name="learning_rate_factor")
