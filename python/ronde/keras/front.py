"""The functions that users call, with all the arguments that Horovod knows for TensorFlow's Keras."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from ronde._collectives import Average
from ronde.keras import values
from ronde.keras.compression import Compression
from ronde.keras.optimizer import distributed
from ronde.keras.saving import load
from ronde.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "allreduce", "load_model"]


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer of the same class that reduces gradients over all ranks before it applies them.

    ``op`` is Average or Sum. ``backward_passes_per_step`` is how many backward passes are added up before gradients
    travel; ``average_aggregated_gradients`` divides by that number. ``gradient_predivide_factor`` f divides by f before
    adding up and by size / f after. ``groups`` is a number of groups, or lists of variables, whose gradients travel
    together (``num_groups`` is its old name). ``sparse_as_dense`` sends slices as dense tensors. Gradients of variables
    given to ``optimizer.register_local_var`` stay on their rank, divided by the number of ranks if
    ``scale_local_gradients``.

    A model that was compiled with it is saved as with the plain optimizer, and can be loaded without this package.

    >>> import keras, horovod.keras as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
    >>> isinstance(optimizer, keras.optimizers.SGD), type(optimizer).__name__
    (True, 'SGD')
    """
    return distributed(
        optimizer,
        name,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
        None,
        device_dense,
        device_sparse,
    )


def PartialDistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer as ``DistributedOptimizer`` does, but leave layers to this rank alone.

    ``local_layers`` is a layer or a list of layers. The gradients of their variables do not travel; they are divided by
    the number of ranks if ``scale_local_gradients``.

    >>> import keras, horovod.keras as hvd
    >>> hvd.init()
    >>> layer = keras.layers.Dense(2)
    >>> type(hvd.PartialDistributedOptimizer(keras.optimizers.Adam(), local_layers=layer)).__name__
    'Adam'
    """
    return distributed(
        optimizer,
        name,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        0,
        groups,
        process_set,
        scale_local_gradients,
        local_layers,
        device_dense,
        device_sparse,
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a value over all ranks. ``op`` is Average (the default) or any other; ``average`` is its old form.

    >>> import horovod.keras as hvd
    >>> hvd.init()
    >>> hvd.allreduce([1.0, 2.0]).tolist()
    [1.0, 2.0]
    """
    if average is not None:
        warnings.warn("average is deprecated; use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=2)
    return values.allreduce(value, name, average, prescale_factor, postscale_factor, op, compression)


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type[Any]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model that was saved with or without this package; its optimizer is a distributed one afterwards.

    The optimizer keeps its state. ``custom_optimizers`` are classes of optimizers, and ``custom_objects`` other
    classes and functions by name, that Keras does not know. ``legacy_opts`` is accepted and not needed: an optimizer
    comes back as what it was saved as.
    """
    del legacy_opts
    return load(filepath, custom_optimizers, custom_objects, compression, keras)
