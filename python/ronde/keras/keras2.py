"""What a distributed optimizer of Keras 2 does otherwise than the class it is made of.

``apply_gradients`` has a step of its own for gradients of several devices: ``aggregate_gradients``, or
``_aggregate_gradients`` in legacy optimizers. They are reduced over the ranks there: after that come clipping and, in
an optimizer that scales losses, the look for infinities, which then all ranks find.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ronde.keras.exchange import exchange_for
from ronde.keras.reduction import Reduction

__all__ = ["DistributedKeras2", "DistributedLegacy", "DistributedLossScale2"]


class _Distributed:
    _reduction: Reduction | None = None
    _passes: Any = None

    def _distribute(self, reduction: Reduction) -> None:
        """Reduce gradients from now on."""
        reduction.framework = "tensorflow"
        object.__setattr__(self, "_reduction", reduction)
        if reduction.backward_passes_per_step > 1:
            passes = exchange_for(reduction.framework).in_passes(
                reduction.backward_passes_per_step, reduction.average_aggregated_gradients
            )
            object.__setattr__(self, "_passes", passes)

    def register_local_var(self, var: Any) -> None:
        """Apply this rank's own gradient to a variable, instead of the reduced one."""
        if self._reduction is not None:
            self._reduction.keep_local(var)

    def _reduced(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        reduction = self._reduction
        if reduction is None or not pairs:
            return pairs
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if self._passes is None:
            results = reduction.reduce(gradients, variables)
        else:
            results = self._passes.collect(gradients, variables, lambda sums: reduction.reduce(sums, variables))
        return list(zip(results, variables))

    def _applied(self, apply: Any) -> Any:
        """Update the variables, or after a pass that is not the last only count it."""
        optimizer: Any = self
        if self._passes is None:
            return apply()
        self._passes.finish(apply, optimizer.iterations)
        return optimizer.iterations


class DistributedKeras2(_Distributed):
    """Comes before the class of the user's optimizer."""

    def aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Reduce gradients over the ranks."""
        parent: Any = super()
        return parent.aggregate_gradients(self._reduced(grads_and_vars))

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], name: str | None = None, **kwargs: Any) -> Any:
        """Reduce gradients over the ranks, unless told that this is done, and update variables with the result."""
        parent: Any = super()
        optimizer: Any = self
        if self._passes is None:
            return parent.apply_gradients(grads_and_vars, name, **kwargs)
        skip = kwargs.pop("skip_gradients_aggregation", False)
        done = skip or not kwargs.pop("experimental_aggregate_gradients", True)
        pairs = list(grads_and_vars) if done else self._reduced(grads_and_vars)
        # Not in a branch, where no variables can be made.
        with tf.init_scope():
            optimizer.build([variable for _, variable in pairs])
        return self._applied(lambda: parent.apply_gradients(pairs, name, skip_gradients_aggregation=True, **kwargs))


class DistributedLegacy(_Distributed):
    """Comes before the class of the user's optimizer."""

    def _aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        parent: Any = super()
        return parent._aggregate_gradients(self._reduced(grads_and_vars))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Reduce gradients over the ranks, unless told that this is done, and update variables with the result."""
        parent: Any = super()
        optimizer: Any = self
        if self._passes is None:
            return parent.apply_gradients(grads_and_vars, name, experimental_aggregate_gradients)
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        if experimental_aggregate_gradients:
            pairs = self._reduced(pairs)
        with tf.init_scope():
            _ = optimizer.iterations
            optimizer._create_all_weights([variable for _, variable in pairs])
        return self._applied(lambda: parent.apply_gradients(pairs, name, False))


class DistributedLossScale2:
    """Comes before ``LossScaleOptimizer``, whose inner optimizer does the work."""

    def _distribute(self, reduction: Reduction) -> None:
        """Reduce gradients from now on; the inner optimizer is distributed already."""
        optimizer: Any = self
        optimizer.inner_optimizer._distribute(reduction)

    def register_local_var(self, var: Any) -> None:
        """Apply this rank's own gradient to a variable, instead of the reduced one."""
        optimizer: Any = self
        optimizer.inner_optimizer.register_local_var(var)
