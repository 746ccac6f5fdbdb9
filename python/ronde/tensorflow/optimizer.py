"""``DistributedOptimizer``: wraps an optimizer so that it applies the gradients of all ranks.

Optimizers of ``tf.compat.v1.train`` are wrapped here. Those of Keras, of every generation, are the business of
:mod:`ronde.keras`, which is imported when one of them comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ronde._basics import basics
from ronde._collectives import Adasum, Average
from ronde.process_sets import ProcessSet, global_process_set
from ronde.tensorflow.aggregation import LocalGradientAggregationHelper
from ronde.tensorflow.compression import Compression, Compressor
from ronde.tensorflow.gradients import (
    check_gradient_options,
    make_allreduce_grads_fn,
    reduce_all_but_local,
)
from ronde.tensorflow.ops import allreduce
from ronde.tensorflow.reductions import check_adasum
from ronde.tensorflow.references import reference

__all__ = ["DistributedOptimizer"]


class _Wrapper(tf.compat.v1.train.Optimizer):
    """An optimizer that leaves the work to another one."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


class _DistributedOptimizer(_Wrapper):
    """Reduces gradients as soon as they are computed; ``reduce`` is what ``make_allreduce_grads_fn`` returns."""

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        reduce: Callable[..., list[Any]],
        aggregation: LocalGradientAggregationHelper | None,
        process_set: ProcessSet,
        scale_local_gradients: bool,
    ) -> None:
        super().__init__(optimizer, name, use_locking)
        self._allreduce_grads = reduce
        self._agg_helper = aggregation
        self._local_vars: set[Any] = set()
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients

    def register_local_var(self, var: Any) -> None:
        """Keep the gradients of a variable on this rank from now on."""
        self._local_vars.add(reference(var))
        if self._agg_helper is not None:
            self._agg_helper.register_local_var(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Compute the gradients of all variables, as the wrapped optimizer does, and reduce them."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        if self._agg_helper is not None:
            return list(zip(self._agg_helper.compute_gradients(gradients, variables), variables))
        reduced = reduce_all_but_local(
            self._allreduce_grads,
            gradients,
            variables,
            self._local_vars,
            self.scale_local_gradients,
            self.process_set,
        )
        return list(zip(reduced, variables))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply gradients by the wrapped optimizer: those of several passes only once they are complete."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._agg_helper is None:
            return apply()
        return self._agg_helper.apply_gradients(apply, self._optimizer, pairs, global_step=global_step)


class _DistributedAdasumOptimizer(_Wrapper):
    """Lets every rank take a step of its own, and combines the steps with Adasum.

    The steps of ``backward_passes_per_step`` calls are taken together: each variable's value before the first of them
    is kept in a variable beside it.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        options: dict[str, Any],
        backward_passes_per_step: int,
    ) -> None:
        super().__init__(optimizer, name, use_locking)
        self._options = options
        self._passes = backward_passes_per_step
        with tf.init_scope():
            self._counter = tf.Variable(0, trainable=False, name="adasum_counter")
        self._starts: dict[Any, Any] = {}

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Compute this rank's own gradients."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Take a step on this rank; after the last of several, go from where they began by what all ranks agree on."""
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        starts = [self._start_of(variable) for _, variable in pairs]
        begun = tf.cond(
            tf.equal(self._counter.read_value(), 0),
            lambda: _after([start.assign(variable) for start, (_, variable) in zip(starts, pairs)]),
            lambda: tf.constant(True),
        )
        with tf.control_dependencies(_in_graph([begun, *[grad for grad, _ in pairs]])):
            stepped = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies(_in_graph([stepped])):
            counted = self._counter.assign_add(1)
        with tf.control_dependencies(_in_graph([counted])):
            complete = tf.equal(self._counter.read_value(), self._passes)

        def combine() -> Any:
            moved = []
            for place, (start, (_, variable)) in enumerate(zip(starts, pairs)):
                step = allreduce(variable - start, op=Adasum, name=f"{self.get_name()}_delta_{place}", **self._options)
                moved.append(variable.assign(start + step))
            return _after([*moved, self._counter.assign(0)])

        done = tf.cond(complete, combine, lambda: tf.constant(True))
        return None if tf.executing_eagerly() else done.op

    def _start_of(self, variable: Any) -> Any:
        key = reference(variable)
        if key not in self._starts:
            with tf.init_scope():
                self._starts[key] = tf.Variable(
                    tf.zeros(variable.shape, variable.dtype.base_dtype), trainable=False, name="delta_start"
                )
        return self._starts[key]


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer that applies the gradients of all ranks.

    ``optimizer`` is one of ``tf.compat.v1.train`` or of Keras. ``backward_passes_per_step`` gradients are added up
    before they travel, and divided by that number if ``average_aggregated_gradients``. For the options of the
    reduction see ``DistributedGradientTape``.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _for_keras(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    groups = check_gradient_options(op, gradient_predivide_factor, num_groups, groups)
    check_adasum(op, process_set)
    if op == Adasum:
        if average_aggregated_gradients:
            raise ValueError("Adasum does not support average_aggregated_gradients == True")
        options = {"device_dense": device_dense, "device_sparse": device_sparse, "compression": compression}
        name = name or f"DistributedDelta{type(optimizer).__name__}"
        return _DistributedAdasumOptimizer(optimizer, name, use_locking, options, backward_passes_per_step)
    name = name or f"Distributed{type(optimizer).__name__}"
    reduce = make_allreduce_grads_fn(
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
    )
    aggregation = None
    if backward_passes_per_step > 1:
        if tf.executing_eagerly():
            raise ValueError(
                "backward_passes_per_step > 1 is not yet supported for _LegacyOptimizer with eager execution."
            )
        aggregation = LocalGradientAggregationHelper(
            backward_passes_per_step,
            reduce,
            sparse_as_dense,
            average_aggregated_gradients,
            basics.rank(),
            LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY,
            process_set,
            scale_local_gradients,
            name,
        )
    return _DistributedOptimizer(optimizer, name, use_locking, reduce, aggregation, process_set, scale_local_gradients)


def _for_keras(optimizer: Any, **options: Any) -> Any:
    if not hasattr(optimizer, "get_config"):
        raise ValueError(
            f"Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer: {optimizer}"
        )
    if options["op"] == Adasum:
        raise ValueError("op == Adasum is not supported yet with Keras")
    from ronde import keras

    return keras.DistributedOptimizer(optimizer, **options)


def _in_graph(operations: list[Any]) -> list[Any]:
    """Return what control dependencies can be made of; nothing while executing eagerly."""
    return [] if tf.executing_eagerly() else operations


def _after(operations: list[Any]) -> Any:
    """Return a tensor that is there when the operations are done."""
    with tf.control_dependencies(_in_graph(operations)):
        return tf.constant(True)
