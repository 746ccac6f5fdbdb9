"""Adding up the gradients of several backward passes on this rank, so that they travel once for all of them.

A helper goes with one optimizer. ``compute_gradients`` adds to sums that are kept in variables; on every n-th call it
returns the reduced sums and starts over, on the others what it has so far. ``apply_gradients`` applies only the former.
It works eagerly, in ``tf.function`` and in graphs of ``tf.compat.v1``, where no order is kept but what control
dependencies say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ronde.process_sets import ProcessSet, global_process_set
from ronde.tensorflow.gradients import divided, reduce_all_but_local
from ronde.tensorflow.references import reference

__all__ = ["LocalGradientAggregationHelper", "LocalGradientAggregationHelperEager"]


class LocalGradientAggregationHelperEager:
    """Adds up gradients for an optimizer; ``allreduce_func(grads, variables)`` reduces the sums."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = backward_passes_per_step
        self.allreduce_grads = allreduce_func
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.counter = _variable([], tf.int32, "aggregation_counter")
        self.locally_aggregated_grads: dict[int, Any] = {}
        self._local_vars: set[Any] = set()

    def register_local_var(self, var: Any) -> None:
        """Keep the gradients of a variable on this rank from now on."""
        self._local_vars.add(reference(var))

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002
        """Add gradients to the sums; return the sums, reduced over all ranks on every n-th call."""
        grads = [self._dense(grad) for grad in grads]
        places = [place for place, grad in enumerate(grads) if grad is not None]
        sums = [self._sum_of(place, grads[place], vars[place]) for place in places]
        added = [total.assign_add(grads[place]) for place, total in zip(places, sums)]
        with tf.control_dependencies(_operations(added)):
            count = self.counter.assign_add(1)
        with tf.control_dependencies(_operations([count])):
            complete = tf.equal(self.counter.read_value(), self.backward_passes_per_step)

        def reduce_and_start_over() -> list[Any]:
            reduced = self._reduced([total.read_value() for total in sums], [vars[place] for place in places])
            with tf.control_dependencies(_operations(reduced)):
                cleared = [total.assign(tf.zeros_like(total)) for total in sums]
                cleared.append(self.counter.assign(0))
            with tf.control_dependencies(_operations(cleared)):
                return [tf.identity(item) for item in reduced]

        def keep() -> list[Any]:
            return [total.read_value() for total in sums]

        results: list[Any] = [None] * len(grads)
        if places:
            for place, result in zip(places, _as_list(tf.cond(complete, reduce_and_start_over, keep))):
                results[place] = result
        return results

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function that applies gradients if these are reduced sums; otherwise count the step, and no more.

        ``args[0]`` are the pairs of gradients and variables that ``compute_gradients`` has led to.
        """
        global_step = kwargs.get("global_step")
        pairs = args[0] if args else ()
        with tf.control_dependencies(_operations([grad for grad, _ in pairs if grad is not None])):
            starts_over = tf.equal(self.counter.read_value(), 0)

        def apply() -> Any:
            return _done(apply_grads_closure())

        def count() -> Any:
            step = global_step if global_step is not None else getattr(optimizer, "iterations", None)
            return _done(None if step is None else step.assign_add(tf.ones([], step.dtype)))

        done = tf.cond(starts_over, apply, count)
        return None if tf.executing_eagerly() else done.op

    def _dense(self, grad: Any) -> Any:
        if not isinstance(grad, tf.IndexedSlices):
            return grad
        if self.sparse_as_dense:
            return tf.convert_to_tensor(grad)
        raise ValueError(
            "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
        )

    def _sum_of(self, place: int, grad: Any, variable: Any) -> Any:
        """Return the variable that holds the sum of a gradient, made when it is first needed."""
        if place not in self.locally_aggregated_grads:
            self.locally_aggregated_grads[place] = _variable(variable.shape, grad.dtype, f"aggregated_gradient_{place}")
        return self.locally_aggregated_grads[place]

    def _reduced(self, sums: list[Any], variables: list[Any]) -> list[Any]:
        found = reduce_all_but_local(
            self.allreduce_grads, sums, variables, self._local_vars, self.scale_local_gradients, self.process_set
        )
        divisor = self.backward_passes_per_step if self.average_aggregated_gradients else 1
        return found if divisor == 1 else [divided(item, divisor) for item in found]


class LocalGradientAggregationHelper(LocalGradientAggregationHelperEager):
    """The same with the arguments that Horovod's helper for graphs takes."""

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        del rank, optimizer_type, name
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
        )


def _variable(shape: Any, dtype: Any, name: str) -> Any:
    """Make a variable of zeros that graphs of ``tf.compat.v1`` initialise with the model's, and that is not trained."""
    with tf.init_scope():
        return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)


def _operations(results: Sequence[Any]) -> list[Any]:
    """Return what control dependencies can be made of; nothing while executing eagerly."""
    return [] if tf.executing_eagerly() else list(results)


def _as_list(found: Any) -> list[Any]:
    """Return the results of a branch, of which ``tf.compat.v1`` unwraps a single one."""
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _done(step: Any) -> Any:
    """Return a tensor that is there when an operation is: both branches of a condition have to return the like."""
    if tf.executing_eagerly() or step is None:
        return tf.constant(True)
    with tf.control_dependencies([step]):
        return tf.constant(True)
