"""Training that goes on when ranks come and go: wrap the training function with ``run`` and keep its state in a State.

>>> import horovod.tensorflow as hvd
>>> @hvd.elastic.run
... def train(state):
...     return state.epoch
>>> hvd.init()
>>> train(hvd.elastic.TensorFlowState(variables=[], epoch=7))
7
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from ronde._basics import basics
from ronde.elastic import ObjectState, run_fn
from ronde.exceptions import HorovodInternalError
from ronde.tensorflow.functions import broadcast_object, broadcast_variables

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Run a training function, whose first argument is a State, again each time the ranks of the job have changed.

    After a failure the state goes back to the last ``commit``; when hosts come or go, it stays as it is. Either way
    this process leaves the job, joins it anew, and everybody takes over the state of rank 0.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return func(state, *args, **kwargs)
        except tf.errors.UnknownError as error:
            # TensorFlow has no class of errors for a lost rank. What else it does not know is the function's own.
            if "Horovod" in str(error.message):
                raise HorovodInternalError(str(error.message)) from error
            raise

    return run_fn(wrapper, _join_anew)


def _join_anew() -> None:
    basics.shutdown()
    basics.init()


class TensorFlowState(ObjectState):
    """State of a training: variables, and anything else by keyword, available as attributes.

    Without ``variables`` it has all global ones of the graph; ``session`` is the one to use in a graph, by default the
    default session.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session
        self._values = _Values(self.variables, lambda: self.session or tf.compat.v1.get_default_session())
        self._values.save()
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)

    def save(self) -> None:
        """Keep everything in memory, to come back to after a failure."""
        self._values.save()
        super().save()

    def restore(self) -> None:
        """Bring back what was saved last."""
        self._values.restore()
        super().restore()

    def sync(self) -> None:
        """Take over everything from rank 0."""
        self._values.sync()
        super().sync()


class TensorFlowKerasState(ObjectState):
    """State of a training: model, optimizer, and anything else by keyword, available as attributes.

    The optimizer is the one that the model was compiled with, unless another is given. ``backend`` is Keras' module of
    that name, whose session is used in a graph.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self.backend = backend
        self._values = self._all_values()
        self._values.save()
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)

    def save(self) -> None:
        """Keep everything in memory, to come back to after a failure."""
        self._values = self._all_values()
        self._values.save()
        super().save()

    def restore(self) -> None:
        """Bring back what was saved last."""
        self._values.restore()
        super().restore()

    def sync(self) -> None:
        """Take over everything from rank 0."""
        self._values = self._all_values()
        self._values.sync()
        super().sync()

    def _all_values(self) -> _Values:
        """Look the variables up again: a model may have got more of them since."""
        variables = [*self.model.variables, *_variables_of(self.optimizer, self.model)]
        return _Values(variables, lambda: self.backend.get_session())


class _Values:
    """The values of some variables: in memory, and taken over from rank 0."""

    def __init__(self, variables: list[Any], session: Callable[[], Any]) -> None:
        self._variables = variables
        self._session = session
        self._saved: list[Any] = []
        # The operations of a graph are made once, since a graph cannot forget any.
        self._broadcast: Any = None
        self._restore: Any = None

    def save(self) -> None:
        if tf.executing_eagerly():
            self._saved = [tf.convert_to_tensor(variable).numpy() for variable in self._variables]
        elif self._variables:
            self._saved = self._session().run(self._variables)

    def restore(self) -> None:
        if tf.executing_eagerly():
            for variable, value in zip(self._variables, self._saved):
                variable.assign(value)
        elif self._variables:
            if self._restore is None:
                places = [tf.compat.v1.placeholder(item.dtype.base_dtype, item.shape) for item in self._variables]
                assigned = [variable.assign(place) for variable, place in zip(self._variables, places)]
                self._restore = places, tf.group(*assigned)
            places, operation = self._restore
            self._session().run(operation, dict(zip(places, self._saved)))

    def sync(self) -> None:
        if tf.executing_eagerly():
            broadcast_variables(self._variables, root_rank=0)
        elif self._variables:
            if self._broadcast is None:
                self._broadcast = broadcast_variables(self._variables, root_rank=0)
            self._session().run(self._broadcast)
        self.save()


def _variables_of(optimizer: Any, model: Any) -> list[Any]:
    """Return the variables of an optimizer; those not there yet are made now, so that ranks agree on them."""
    if optimizer is None:
        return []
    if tf.executing_eagerly():
        if hasattr(optimizer, "build"):
            if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
                optimizer.build(model.trainable_variables)
        elif hasattr(optimizer, "_create_all_weights"):
            optimizer._create_all_weights(model.trainable_variables)
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
