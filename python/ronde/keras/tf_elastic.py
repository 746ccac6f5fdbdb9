"""What :mod:`ronde.keras.elastic` has, for ``tf.keras``."""

from __future__ import annotations

from tensorflow import keras

from ronde.keras import elastic_parts
from ronde.keras.elastic_parts import KerasState, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class CommitStateCallback(elastic_parts.CommitState, keras.callbacks.Callback):
    """Commits a state every ``batches_per_commit`` batches and at the end of each epoch."""


class UpdateBatchStateCallback(elastic_parts.UpdateBatchState, keras.callbacks.Callback):
    """Keeps ``state.batch`` up to date; comes before :class:`CommitStateCallback`."""


class UpdateEpochStateCallback(elastic_parts.UpdateEpochState, keras.callbacks.Callback):
    """Keeps ``state.epoch`` up to date; comes before :class:`CommitStateCallback`."""
