"""What the callbacks do, apart from being callbacks: the base class comes from the Keras that calls them.

:mod:`ronde.keras.callbacks` and :mod:`ronde.keras.tf_callbacks` put the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy

from ronde._basics import basics
from ronde._collectives import Average
from ronde.keras import arrays
from ronde.keras.flavours import (
    built,
    inner_of,
    is_legacy,
    learning_rate_of,
    sync_state,
)
from ronde.keras.schedules import Rate, rate_for
from ronde.keras.variables import broadcast_model

__all__ = [
    "BroadcastGlobalVariables",
    "LearningRateSchedule",
    "LearningRateWarmup",
    "MetricAverage",
    "keep_best",
    "require_file",
]


class BroadcastGlobalVariables:
    """Gives every rank the variables of one, once.

    It does so after the first batch, since optimizers have made all of their variables then; what that batch has
    changed on the other ranks is overwritten.
    """

    model: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local_variables = list(local_variables or ())

    def register_local_var(self, var: Any) -> None:
        """Leave a variable of the model to each rank."""
        self._local_variables.append(var)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast, after the first batch."""
        del batch, logs
        if not self.broadcast_done:
            broadcast_model(self.model, self.model.optimizer, self.root_rank, self._local_variables)
            self.broadcast_done = True


class MetricAverage:
    """Replaces the metrics of an epoch by their averages over all ranks.

    Callbacks that come later in the list see the averages.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average what is a number."""
        del epoch
        for metric in sorted(logs or {}):
            value = numpy.asarray(logs[metric])  # type: ignore[index]
            if value.dtype.kind in "fiub":
                total = arrays.allreduce(value.astype(numpy.float64), f"metric.{metric}", Average)
                logs[metric] = total.tolist()  # type: ignore[index]


class LearningRateSchedule:
    """Sets the learning rate to ``initial_lr`` times a multiplier of the epoch, within a range of epochs.

    Where the optimizer was made with a ``LearningRateSchedule``, that is multiplied instead of ``initial_lr``.
    A constant multiplier is applied once an epoch: ``multiplier ** (epoch - start_epoch)``. With ``staircase=False`` a
    function is called before each batch with a fraction of an epoch, which takes ``steps_per_epoch``.

    When the rate changes, momentum has to change with it, since SGD keeps it multiplied by the rates of the past
    (Goyal et al., 2017). What is kept is scaled by the new rate over the old, which is the same as to use, for one
    step, a momentum scaled so, and needs no change of a number that is part of a compiled step.
    """

    model: Any
    params: dict[str, Any]
    _rate: Rate

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Get hold of the learning rate, and find out how many batches an epoch has, if that was not said."""
        del logs
        self._rate = rate_for(self.model, self.initial_lr)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Keras does not know how many batches an epoch has; "
                    f"say so with {type(self).__name__}(steps_per_epoch=...)"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Take note of the epoch."""
        del logs
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Adjust the learning rate, before the first or before every batch."""
        del logs
        ended = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or ended:
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the learning rate as ``lr``."""
        del epoch
        if logs is not None:
            logs["lr"] = learning_rate_of(self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        sync_state(self.model)
        growth = self._rate.multiply(self.multiplier(epoch))
        if self.momentum_correction and growth != 1.0:
            for kept in _momentum_kept(self.model):
                kept.assign(kept * growth)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr``, batch by batch, over some epochs.

    ``initial_lr`` is the rate for all ranks together: that for one rank times the number of ranks.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # One batch ahead, so that the last batch of the last epoch has the full rate.
            ahead = epoch + 1.0 / (self.steps_per_epoch or 1)
            size = basics.size()
            return (ahead * (size - 1) / warmup_epochs + 1) / size

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the learning rate, and say when it has arrived."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = learning_rate_of(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def keep_best(save_weights_only: bool) -> dict[str, Any]:
    """Return arguments of ``ModelCheckpoint`` for a file whose name is not known yet, but has to have an ending."""
    return {
        "filepath": ".weights.h5" if save_weights_only else ".keras",
        "save_best_only": True,
        "save_weights_only": save_weights_only,
    }


def require_file(checkpoint: Any) -> None:
    """Refuse to train with a checkpoint whose file nobody has named."""
    if checkpoint.filepath is None:
        raise ValueError(f"set the filepath of {type(checkpoint).__name__} before training")


def _momentum_kept(model: Any) -> list[Any]:
    """Return the variables in which SGD and RMSprop keep momentum, multiplied by the learning rates of the past."""
    optimizer = inner_of(model.optimizer) or model.optimizer
    multiplied = any(kind.__name__ in ("SGD", "RMSprop") for kind in type(optimizer).__mro__)
    if not multiplied or not getattr(optimizer, "momentum", 0.0) or not built(optimizer):
        return []
    if is_legacy(optimizer):
        return [optimizer.get_slot(variable, "momentum") for variable in model.trainable_variables]
    kept = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [variable for variable in kept if variable is not None]
