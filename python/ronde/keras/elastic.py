"""Training that goes on when ranks come and go: a state, callbacks that keep it up to date, and ``run``.

>>> import keras, horovod.keras as hvd
>>> @hvd.elastic.run
... def train(state):
...     return state.epoch
>>> hvd.init()
>>> model = keras.Sequential([keras.layers.Dense(1)])
>>> model.build((None, 2))
>>> train(hvd.elastic.KerasState(model, epoch=7))
7
"""

from __future__ import annotations

from keras.callbacks import Callback

from ronde.keras import elastic_parts
from ronde.keras.elastic_parts import KerasState, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class CommitStateCallback(elastic_parts.CommitState, Callback):
    """Commits a state every ``batches_per_commit`` batches and at the end of each epoch.

    A commit costs a copy of the model; what was done since the last one is lost when a rank fails.
    """


class UpdateBatchStateCallback(elastic_parts.UpdateBatchState, Callback):
    """Keeps ``state.batch`` up to date; comes before :class:`CommitStateCallback`."""


class UpdateEpochStateCallback(elastic_parts.UpdateEpochState, Callback):
    """Keeps ``state.epoch`` up to date; comes before :class:`CommitStateCallback`."""
