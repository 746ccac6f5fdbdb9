"""Bringing every rank to the same state: variables, and any object.

Variables are read, broadcast and assigned with TensorFlow's own operations, so that every kind of variable works in
every version: those of TensorFlow, of ``tf.compat.v1`` and of Keras 3. Objects do not pass through TensorFlow at all
(:mod:`ronde._objects`); the ``session`` that some functions take is not needed, and accepted for scripts that pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from ronde import _objects
from ronde.process_sets import ProcessSet, global_process_set
from ronde.tensorflow import calls
from ronde.tensorflow.naming import normalised
from ronde.tensorflow.reductions import number_of

__all__ = [
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables with the root's, and return their values.

    >>> import tensorflow as tf, horovod.tensorflow as hvd
    >>> hvd.init()
    >>> [value.numpy().tolist() for value in hvd.broadcast_([tf.Variable([1.0, 2.0])], root_rank=0)]
    [[1.0, 2.0]]
    """
    results = []
    for place, variable in enumerate(variables):
        assigned = _overwrite(variable, root_rank, None if name is None else f"{name}_{place}", process_set)
        with tf.control_dependencies([] if tf.executing_eagerly() else [assigned]):
            results.append(tf.identity(variable))
    return results


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite variables with the root's: at once, or, in a graph, by the operation that is returned.

    ``inplace`` asked Horovod to save a copy; the result is the same.

    >>> import tensorflow as tf, horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.broadcast_variables([tf.Variable(1.0), tf.Variable(2.0)], root_rank=0)
    """
    del inplace
    assigned = [_overwrite(variable, root_rank, None, process_set) for variable in variables]
    return None if tf.executing_eagerly() else tf.group(*assigned)


def _overwrite(variable: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    if name is None and not tf.executing_eagerly():
        name = f"HorovodBroadcast_{normalised(str(variable.name))}"
    value = calls.broadcast(tf.convert_to_tensor(variable), root_rank, name, process_set_id=number_of(process_set))
    # The value keeps the shape that is known of the variable: assigning to one of Keras needs it.
    value = tf.ensure_shape(value, variable.shape)
    assigned = variable.assign(value)
    return value if assigned is None else assigned


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that overwrites all global variables of the graph with the root's."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. "
            "Please use `hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank.

    >>> import horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.broadcast_object({"epoch": 3})
    {'epoch': 3}
    """
    del session
    return _objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that returns the root's argument on every rank."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all ranks as a list, by rank.

    >>> import horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.allgather_object("mine")
    ['mine']
    """
    del session
    return _objects.allgather_object(obj, name, process_set)
