"""The functions of ``horovod.keras`` that take fewer arguments, or other defaults, than those of TensorFlow's Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ronde._collectives import Average
from ronde.keras import values
from ronde.keras.compression import Compression
from ronde.keras.optimizer import distributed

__all__ = ["DistributedOptimizer", "allreduce"]


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
) -> Any:
    """Return an optimizer of the same class that reduces gradients over all ranks before it applies them.

    ``ronde.keras.DistributedOptimizer`` and that of ``horovod.tensorflow.keras`` take more arguments, and say what
    these ones mean.

    >>> import keras, horovod.keras as hvd
    >>> hvd.init()
    >>> type(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))).__name__
    'SGD'
    """
    return distributed(
        optimizer,
        name,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        num_groups=num_groups,
        groups=groups,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a value over all ranks: Average, or with ``average=False`` Sum, or what ``op`` says.

    >>> import horovod.keras as hvd
    >>> hvd.init()
    >>> hvd.allreduce([1.0, 2.0], average=False).tolist()
    [1.0, 2.0]
    """
    chosen = average if op is None else None
    return values.allreduce(value, name, chosen, prescale_factor, postscale_factor, op, compression)
