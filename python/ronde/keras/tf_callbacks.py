"""The callbacks for ``tf.keras``, which may be another Keras than ``import keras`` gives (``TF_USE_LEGACY_KERAS``)."""

from __future__ import annotations

from typing import Any

from tensorflow import keras

from ronde.keras import callback_parts

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(callback_parts.BroadcastGlobalVariables, keras.callbacks.Callback):
    """Broadcasts the variables of model and optimizer from one rank to all others, once, after the first batch.

    >>> BroadcastGlobalVariablesCallback(0).broadcast_done
    False
    """


class MetricAverageCallback(callback_parts.MetricAverage, keras.callbacks.Callback):
    """Averages metrics over all ranks at the end of each epoch; put it before callbacks that look at them."""


class LearningRateScheduleCallback(callback_parts.LearningRateSchedule, keras.callbacks.Callback):
    """Sets the learning rate to ``initial_lr`` times a multiplier of the epoch, and corrects momentum for it.

    >>> LearningRateScheduleCallback(0.1, multiplier=0.5, start_epoch=10).multiplier(12)
    0.25
    """


class LearningRateWarmupCallback(callback_parts.LearningRateWarmup, keras.callbacks.Callback):
    """Raises the learning rate over the first epochs from that for one rank to that for all of them."""


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the model whenever a metric is better than ever before, to ``filepath``, an attribute to be set."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        arguments = callback_parts.keep_best(save_weights_only)
        super().__init__(monitor=monitor, verbose=verbose, mode=mode, save_freq=save_freq, **arguments)
        self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Make sure that there is a file to save to."""
        callback_parts.require_file(self)
        super().on_train_begin(logs)
