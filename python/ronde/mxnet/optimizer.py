"""``DistributedOptimizer``: an optimizer that averages gradients over all ranks before it uses them."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from ronde.mxnet.gradients import Averaging
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedOptimizer"]

# What the wrapper has of its own; everything else belongs to the optimizer inside.
_OWN = ("_optimizer", "_averaging")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Wraps an optimizer for ``Module`` and the like; with Gluon, use ``DistributedTrainer``.

    ``gradient_predivide_factor`` f divides gradients by f before they are added up and by size / f after.
    ``num_groups`` is the number of groups in which gradients travel that are updated together; 0: each by itself.

    >>> import mxnet as mx, horovod.mxnet as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1))
    >>> optimizer.learning_rate
    0.1
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        # The base class would give this object settings of its own.
        averaging = Averaging(gradient_predivide_factor, num_groups, process_set)
        averaging.check()
        self._optimizer = optimizer
        self._averaging = averaging

    def __getattr__(self, item: str) -> Any:
        """Ask the optimizer inside for what is not here."""
        if item in _OWN:
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def __setattr__(self, item: str, value: Any) -> None:
        """Change the optimizer inside: trainers set its ``rescale_grad``, for example."""
        if item in _OWN:
            super().__setattr__(item, value)
        else:
            setattr(self._optimizer, item, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled by what makes another like this one; in another job, of all its ranks."""
        averaging = self._averaging
        return DistributedOptimizer, (self._optimizer, averaging.gradient_predivide_factor, averaging.num_groups)

    @property
    def learning_rate(self) -> Any:
        """The current learning rate of the optimizer inside."""
        return self._optimizer.learning_rate

    def create_state(self, index: Any, weight: Any) -> Any:
        """Make the state of a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Make the state of a weight, with a copy of it in float32 where it has 16 bits."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average gradients and update the weights with them."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average gradients and update the weights with them, in float32 where they have 16 bits."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the optimizer inside."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set factors of the learning rate by parameter."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set factors of the weight decay by parameter."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _average(self, index: Any, grad: Any) -> None:
        if isinstance(index, (tuple, list)):
            self._averaging.start([str(each) for each in index], grad)
        else:
            self._averaging.start([str(index)], [grad])
