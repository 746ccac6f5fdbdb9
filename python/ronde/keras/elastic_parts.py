"""The state of a training with Keras, and the callbacks that keep it up to date, apart from being callbacks.

:mod:`ronde.keras.elastic` and :mod:`ronde.keras.tf_elastic` add the base class of the Keras that calls them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ronde import _objects
from ronde._basics import basics
from ronde.elastic import ObjectState
from ronde.keras.flavours import backend, own_variables, sync_state, to_numpy, weights_of
from ronde.keras.variables import broadcast_model

__all__ = ["CommitState", "KerasState", "UpdateBatchState", "UpdateEpochState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Run a training function, whose first argument is a State, again each time the ranks of the job have changed.

    After a failure the state goes back to the last ``commit``; when hosts come or go, it stays as it is. Either way
    this process leaves the job, joins it anew, and everybody takes over the state of rank 0.
    """
    # How a lost rank shows is up to the framework.
    framework: Any = importlib.import_module(f"ronde.{backend()}.elastic")
    wrapped: Callable[..., Any] = framework.run(func)
    return wrapped


class KerasState(ObjectState):
    """State of a training: a model that has been built, its optimizer, and anything else by keyword.

    What goes by keyword is available as attributes, for example ``state.epoch`` and ``state.batch``.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True) or not weights_of(model):
            raise ValueError("the model has no weights yet; call model.build(input_shape) first")
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        super().__init__(bcast_object=_objects.broadcast_object, get_rank=basics.rank, **kwargs)
        self._keep()

    def save(self) -> None:
        """Keep everything in memory, to come back to after a failure."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Bring back what was saved last."""
        sync_state(self.model)
        for variable, value in zip(weights_of(self.model), self._weights):
            variable.assign(value)
        for variable, value in zip(self._own_variables(), self._optimizer_values):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Take over everything from rank 0."""
        sizes = [len(weights_of(self.model)), len(self._own_variables())]
        theirs = _objects.broadcast_object(sizes, name="keras.state")
        # An optimizer that has not been used yet, as that of a rank that is new, may have no slots.
        optimizer = self.optimizer if sizes[1] == theirs[1] else self._built_optimizer()
        broadcast_model(self.model, optimizer, root_rank=0)
        self._keep()
        super().sync()

    def _built_optimizer(self) -> Any:
        build = getattr(self.optimizer, "build", None)
        variables = self.model.trainable_variables
        if build is not None:
            build(variables)
        elif self.optimizer is not None:
            _ = self.optimizer.iterations
            self.optimizer._create_all_weights(variables)
        return self.optimizer

    def _own_variables(self) -> list[Any]:
        return [] if self.optimizer is None else own_variables(self.optimizer)

    def _keep(self) -> None:
        sync_state(self.model)
        self._weights = [to_numpy(variable).copy() for variable in weights_of(self.model)]
        self._optimizer_values = [to_numpy(variable).copy() for variable in self._own_variables()]


class CommitState:
    """Commits a state every so many batches, and at the end of each epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from the beginning, also after a reset, so that all ranks count alike."""
        del logs
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if it is time to."""
        del batch, logs
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        del epoch, logs
        self.state.commit()


class UpdateBatchState:
    """Keeps ``state.batch``: the batch of the epoch that was done last, also when the epoch began before a reset."""

    params: dict[str, Any]

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None
        self._done_before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Take note of where in the epoch this training begins."""
        del logs
        self.steps_per_epoch = None
        self._done_before = self.state.batch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Expect fewer batches in an epoch that began before a reset."""
        del epoch, logs
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Take note of the batch."""
        del logs
        self.state.batch = self._done_before + batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begin the next epoch with its first batch."""
        del epoch, logs
        self._done_before = self.state.batch = 0


class UpdateEpochState:
    """Keeps ``state.epoch``: how many epochs are done, those before a reset included."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Take note of the epochs that are done; ``fit`` counts from 0 again."""
        del logs
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the epoch."""
        del logs
        self.state.epoch = self.initial_epoch + epoch + 1
