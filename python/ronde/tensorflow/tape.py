"""Gradient tapes whose gradients are those of all ranks.

A distributed tape is the tape it was made from, with the same recording, of a class that reduces what ``gradient``
returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ronde._collectives import Average
from ronde.process_sets import ProcessSet, global_process_set
from ronde.tensorflow.compression import Compression, Compressor
from ronde.tensorflow.gradients import (
    check_gradient_options,
    make_allreduce_grads_fn,
    reduce_all_but_local,
)
from ronde.tensorflow.reductions import check_adasum
from ronde.tensorflow.references import reference

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _DistributedGradientTape:
    """What a distributed tape has in place of, and on top of, the tape's own methods."""

    _reduce: Callable[..., list[Any]]
    _local_sources: set[Any]
    process_set: ProcessSet
    scale_local_gradients: bool

    def register_local_source(self, source: Any) -> None:
        """Keep the gradients of a variable on this rank from now on."""
        self._local_sources.add(reference(source))

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients of ``target``, reduced over all ranks, in the structure of ``sources``.

        ``use_generic_names`` leaves the scopes around it out of the names by which ranks find each other.
        """
        own = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        flat = _flat(own)
        reduced = reduce_all_but_local(
            self._reduce,
            flat,
            tf.nest.flatten(sources),
            self._local_sources,
            self.scale_local_gradients,
            self.process_set,
            use_generic_names=use_generic_names,
        )
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """Return the gradients of local sources, and the reduced ones of all others, as two lists."""
        flat = tf.nest.flatten(sources)
        found = self.gradient(target, flat, output_gradients, use_generic_names)
        is_local = [reference(source) in self._local_sources for source in flat]
        return (
            [grad for grad, local in zip(found, is_local) if local],
            [grad for grad, local in zip(found, is_local) if not local],
        )


def DistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape with the recording of another one, whose gradients are reduced over all ranks.

    ``gradient_predivide_factor`` splits the averaging: gradients are divided by it before they are added up, and by
    what is left of the number of ranks after. ``groups`` is a number of groups, or a list of lists of variables, whose
    gradients travel together. ``sparse_as_dense`` makes tensors of ``tf.IndexedSlices`` first.

    >>> import tensorflow as tf, horovod.tensorflow as hvd
    >>> hvd.init()
    >>> weight = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...     loss = weight * weight
    >>> hvd.DistributedGradientTape(tape).gradient(loss, [weight])[0].numpy().item()
    6.0
    """
    if isinstance(gradtape, _DistributedGradientTape):
        raise ValueError("this tape is distributed already; its gradients would be reduced twice")
    groups = check_gradient_options(op, gradient_predivide_factor, num_groups, groups)
    check_adasum(op, process_set)
    kind = type(gradtape)
    tape: Any = object.__new__(type(kind.__name__, (_DistributedGradientTape, kind), {}))
    tape.__dict__.update(gradtape.__dict__)
    tape._reduce = make_allreduce_grads_fn(
        "DistributedGradientTape",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
    )
    tape._local_sources = set()
    tape.process_set = process_set
    tape.scale_local_gradients = scale_local_gradients
    return tape


def PartialDistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a distributed tape that leaves the gradients of some layers on this rank.

    ``local_layers`` is a layer or a collection of layers; the other arguments are those of ``DistributedGradientTape``.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in _layers(local_layers):
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


def _layers(local_layers: Any) -> list[Any]:
    if local_layers is None:
        return []
    layers = [local_layers] if hasattr(local_layers, "trainable_weights") else list(local_layers)
    if not all(isinstance(layer, tf.keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return layers


def _flat(gradients: Any) -> list[Any]:
    """Flatten a structure of gradients; ``tf.IndexedSlices`` and ``None`` are leaves of it."""
    return tf.nest.flatten(gradients, expand_composites=False)
