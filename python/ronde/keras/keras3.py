"""What a distributed optimizer of Keras 3 does otherwise than the class it is made of.

TensorFlow's and PyTorch's trainers hand gradients to ``apply``, and JAX's to ``stateless_apply``, which calls it. They
are reduced there, so whatever the optimizer does to gradients itself (clipping, scaling back, adding up) is done to
reduced ones and is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ronde.keras.exchange import exchange_for
from ronde.keras.flavours import backend
from ronde.keras.reduction import Reduction

__all__ = ["DistributedKeras3", "DistributedLossScale"]


class DistributedKeras3:
    """Comes before the class of the user's optimizer."""

    _reduction: Reduction | None = None
    _passes: Any = None
    # An optimizer inside one that scales losses leaves the work to that.
    _reduces = False

    def _distribute(self, reduction: Reduction) -> None:
        """Reduce gradients from now on."""
        optimizer: Any = self
        reduction.framework = backend()
        object.__setattr__(self, "_reduction", reduction)
        object.__setattr__(self, "_reduces", True)
        if reduction.backward_passes_per_step > 1:
            carrier = exchange_for(reduction.framework)
            passes = carrier.in_passes(reduction.backward_passes_per_step, reduction.average_aggregated_gradients)
            object.__setattr__(self, "_passes", passes)
            if optimizer.built and hasattr(passes, "make_variables"):
                passes.make_variables(self, optimizer._trainable_variables)

    def _hand_over(self) -> None:
        """Leave the gradients to the optimizer around this one."""
        object.__setattr__(self, "_reduces", False)
        object.__setattr__(self, "_passes", None)

    def register_local_var(self, var: Any) -> None:
        """Apply this rank's own gradient to a variable, instead of the reduced one."""
        if self._reduction is not None:
            self._reduction.keep_local(var)

    def build(self, variables: Sequence[Any]) -> None:
        """Make the variables of the optimizer, and those for sums of passes where they have to be among them."""
        parent: Any = super()
        parent.build(variables)
        if hasattr(self._passes, "make_variables"):
            self._passes.make_variables(self, variables)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce gradients over the ranks and update variables with the result."""
        optimizer: Any = self
        parent: Any = super()
        reduction = self._reduction
        if reduction is None or not self._reduces or not len(grads):
            parent.apply(grads, trainable_variables)
            return
        variables = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)

        def reduce(gradients: Sequence[Any]) -> list[Any]:
            return reduction.reduce(gradients, variables)

        if self._passes is None:
            parent.apply(reduce(grads), trainable_variables)
            return
        if not optimizer.built:
            optimizer.build(variables)
        if hasattr(self._passes, "step"):
            self._passes.step(
                grads, optimizer, variables, reduce, lambda totals: parent.apply(totals, trainable_variables)
            )
        else:
            totals = self._passes.collect(grads, variables, reduce)
            self._passes.finish(lambda: parent.apply(totals, trainable_variables), self._counted())

    def save_own_variables(self, store: Any) -> None:
        """Save what the plain optimizer would, so that it can load it."""
        for place, variable in enumerate(self._saved_variables()):
            store[str(place)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load what the plain optimizer or one of this class has saved."""
        parent: Any = super()
        saved = self._saved_variables()
        if len(store.keys()) != len(saved):
            # Says so, and leaves the variables alone.
            parent.load_own_variables(store)
            return
        for place, variable in enumerate(saved):
            variable.assign(store[str(place)])

    def _saved_variables(self) -> list[Any]:
        optimizer: Any = self
        sums = {id(variable) for variable in getattr(self._passes, "variables", ())}
        return [variable for variable in optimizer.variables if id(variable) not in sums]

    def _counted(self) -> Any:
        """Return the variable that counts steps."""
        optimizer: Any = self
        return optimizer._iterations


class DistributedLossScale(DistributedKeras3):
    """Comes before ``LossScaleOptimizer``.

    It skips a step where gradients are not finite. They are reduced before it looks, since an infinity on one rank is
    one on all ranks then, and all of them skip the same steps.
    """

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> Any:
        """Reduce gradients over the ranks and return the updated variables."""
        parent: Any = super()
        optimizer: Any = self
        if self._passes is not None:
            raise NotImplementedError(
                "on JAX, backward_passes_per_step does not go together with a LossScaleOptimizer; "
                "use the gradient_accumulation_steps of the inner optimizer"
            )
        if self._reduction is not None and self._reduces:
            grads = self._reduction.reduce(grads, optimizer._trainable_variables)
        return parent.stateless_apply(optimizer_variables, grads, trainable_variables)

    def _counted(self) -> Any:
        optimizer: Any = self
        return optimizer.inner_optimizer._iterations
