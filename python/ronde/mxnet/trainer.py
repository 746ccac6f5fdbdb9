"""``DistributedTrainer``: Gluon's trainer, over all ranks."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from ronde.mxnet.compression import Compression, Compressor
from ronde.mxnet.gradients import Averaging
from ronde.mxnet.optimizer import DistributedOptimizer
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedTrainer"]


class DistributedTrainer(mx.gluon.Trainer):
    """A trainer whose ``step`` averages gradients over all ranks before it updates the parameters.

    ``step(batch_size)`` takes the batch size of this rank. ``compression`` says how gradients travel;
    ``gradient_predivide_factor`` f divides them by f before they are added up and by size / f after. ``prefix`` goes in
    front of the names by which ranks match gradients: trainers that ranks use in different orders need different ones.
    ``num_groups`` is the number of groups in which gradients travel; 0: each by itself.

    >>> import mxnet as mx, horovod.mxnet as hvd
    >>> hvd.init()
    >>> net = mx.gluon.nn.Dense(1, in_units=2)
    >>> net.initialize()
    >>> trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.ones((4, 2))).sum()
    >>> loss.backward()
    >>> trainer.step(4)
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not (prefix is None or isinstance(prefix, str)):
            raise ValueError(f"prefix is a string or None, not {type(prefix).__name__}")
        averaging = Averaging(gradient_predivide_factor, num_groups, process_set)
        averaging.check()
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer._optimizer
            warnings.warn(
                "DistributedTrainer does not take DistributedOptimizer as its optimizer. We have unwrapped it for you.",
                stacklevel=2,
            )
        if isinstance(params, (list, tuple)):
            # Their places become the names of gradients, so all ranks need the same order.
            params = sorted(params, key=lambda parameter: parameter.name)
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._averaging = averaging
        self._prefix = prefix or ""
        self._compression = compression

    def _allreduce_grads(self) -> None:
        """Average the gradients; called by ``step`` and by ``allreduce_grads``."""
        names, gradients = [], []
        for place, parameter in enumerate(self._params):
            if parameter.grad_req != "null":
                copies = parameter.list_grad()
                if len(copies) > 1:
                    raise ValueError(
                        f"{parameter.name} is in {len(copies)} contexts; a rank trains in one, so start a rank for each"
                    )
                names.append(f"{self._prefix}{place}")
                gradients.append(copies[0])
        packed = [self._compression.compress(gradient) for gradient in gradients]
        self._averaging.start(names, [tensor for tensor, _ in packed])
        for gradient, (tensor, context) in zip(gradients, packed):
            if tensor is not gradient:
                gradient[:] = self._compression.decompress(tensor, context)
