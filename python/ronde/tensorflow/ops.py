"""The collectives on tensors, variables and ``tf.IndexedSlices``, as users call them.

They work eagerly, in ``tf.function`` and in graphs of ``tf.compat.v1``, and can be differentiated. Ranks find each
other by name: in a graph the name of the operation, eagerly the given one, or a running number where none is given, so
that unnamed operations pair up by the order in which they are called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ronde._collectives import Adasum, Average, Sum
from ronde.process_sets import ProcessSet, global_process_set
from ronde.tensorflow import calls
from ronde.tensorflow import gradient_rules as _gradient_rules  # noqa: F401
from ronde.tensorflow.compression import Compression, Compressor
from ronde.tensorflow.naming import normalised
from ronde.tensorflow.reductions import (
    check_adasum,
    handle_average_backwards_compatibility,
    number_of,
    size_of,
)

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks and return the result.

    ``op`` is one of Average (the default), Sum, Adasum, Min, Max and Product. Elements are multiplied by
    ``prescale_factor`` before and by ``postscale_factor`` after. ``compression`` says how they travel. ``average`` is
    the old way to choose Average or Sum. ``tf.IndexedSlices`` are gathered (Average and Sum, no factors).

    >>> import tensorflow as tf, horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum).numpy().tolist()
    [1.0, 2.0]
    """
    op = handle_average_backwards_compatibility(op, average)
    check_adasum(op, process_set)
    if isinstance(tensor, tf.IndexedSlices):
        _check_sparse(op, prescale_factor, postscale_factor)
        with _on(device_sparse):
            return _gather_slices(tensor, op, name, process_set, ignore_name_scope)
    with _on(device_dense):
        packed, context = compression.compress(tf.convert_to_tensor(tensor))
        result = calls.allreduce(
            packed,
            name or _name_of_variable("Allreduce", tensor),
            op,
            prescale_factor,
            postscale_factor,
            ignore_name_scope,
            number_of(process_set),
        )
        return compression.decompress(result, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors together and return the results as a list.

    Tensors of different types form one group each; ``tf.IndexedSlices`` among them are gathered one by one.
    """
    if not tensors:
        return tensors if isinstance(tensors, list) else list(tensors)
    op = handle_average_backwards_compatibility(op, average)
    check_adasum(op, process_set)
    results: list[Any] = [None] * len(tensors)
    sparse = [place for place, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [place for place, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if sparse:
        _check_sparse(op, prescale_factor, postscale_factor)
    with _on(device_sparse):
        for place in sparse:
            own_name = None if name is None else f"{name}_{place}"
            results[place] = _gather_slices(tensors[place], op, own_name, process_set, ignore_name_scope)
    with _on(device_dense):
        packed = [compression.compress(tf.convert_to_tensor(tensors[place])) for place in dense]
        found = _by_type(
            [tensor for tensor, _ in packed],
            name,
            lambda group, its_name: calls.grouped_allreduce(
                group,
                its_name,
                op,
                prescale_factor,
                postscale_factor,
                ignore_name_scope,
                number_of(process_set),
            ),
        )
        for place, result, (_, context) in zip(dense, found, packed):
            results[place] = compression.decompress(result, context)
    return results


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Join the tensors of all ranks along the first dimension, which may differ between ranks.

    >>> import tensorflow as tf, horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.allgather(tf.zeros([2, 3])).shape.as_list()
    [2, 3]
    """
    name = name or _name_of_variable("Allgather", tensor)
    return calls.allgather(tf.convert_to_tensor(tensor), name, ignore_name_scope, number_of(process_set))


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Join several tensors, each with its like on the other ranks."""
    if not tensors:
        return list(tensors)
    return _by_type(
        [tf.convert_to_tensor(tensor) for tensor in tensors],
        name,
        lambda group, its_name: calls.grouped_allgather(group, its_name, ignore_name_scope, number_of(process_set)),
    )


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's tensor on every rank; the others' give the shape and the type.

    ``root_rank`` counts in the job, also where a process set is given.

    >>> import tensorflow as tf, horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.broadcast(tf.constant([7, 8]), root_rank=0).numpy().tolist()
    [7, 8]
    """
    name = name or _name_of_variable("Broadcast", tensor)
    return calls.broadcast(tf.convert_to_tensor(tensor), root_rank, name, ignore_name_scope, number_of(process_set))


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank and return those received, in the order of the ranks they come from.

    ``splits`` says how many rows go to each rank; the result is then a pair of the rows and how many came from each.
    Without it every rank gets the same number, and the rows alone are returned.

    >>> import tensorflow as tf, horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.alltoall(tf.range(3)).numpy().tolist()
    [0, 1, 2]
    """
    counts = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits)
    name = name or _name_of_variable("Alltoall", tensor)
    if counts.dtype != tf.int32:
        _refuse_splits(tensor, counts, name, ignore_name_scope, process_set)
    rows, received = calls.alltoall(
        tf.convert_to_tensor(tensor), counts, name, ignore_name_scope, number_of(process_set)
    )
    return rows if splits is None else (rows, received)


def _refuse_splits(
    tensor: Any, splits: Any, name: str | None, ignore_name_scope: bool, process_set: ProcessSet
) -> None:
    """Raise because of the type of the splits; the other ranks, which wait for this one, are told by wrong splits."""
    message = f"splits has to be of int32, not {splits.dtype.name}"
    if tf.executing_eagerly():
        wrong = tf.zeros([1, 1], tf.int32)
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            calls.alltoall(tf.convert_to_tensor(tensor), wrong, name, ignore_name_scope, number_of(process_set))
    raise tf.errors.InvalidArgumentError(None, None, message)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor (Average or Sum) and give each rank its share of the rows, the first ranks one more if need be.

    >>> import tensorflow as tf, horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.reducescatter(tf.constant([1.0, 2.0]), op=hvd.Sum).numpy().tolist()
    [1.0, 2.0]
    """
    with _on(device_dense):
        packed, context = compression.compress(tf.convert_to_tensor(tensor))
        result = calls.reducescatter(
            packed,
            name or _name_of_variable("Reducescatter", tensor),
            op,
            ignore_name_scope,
            number_of(process_set),
            prescale_factor,
            postscale_factor,
        )
        return compression.decompress(result, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several tensors together and share out the rows of each."""
    if not tensors:
        return list(tensors)
    with _on(device_dense):
        packed = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
        found = _by_type(
            [tensor for tensor, _ in packed],
            None,
            lambda group, its_name: calls.grouped_reducescatter(
                group,
                its_name,
                op,
                False,
                number_of(process_set),
                prescale_factor,
                postscale_factor,
            ),
        )
        return [compression.decompress(result, context) for result, (_, context) in zip(found, packed)]


def _on(device: str) -> Any:
    """Place operations on a device, if one is named."""
    return tf.device(device) if device else contextlib.nullcontext()


def _name_of_variable(kind: str, tensor: Any) -> str | None:
    """Return a name for an operation on a variable: in a graph reading it gives a tensor that is not named after it."""
    if tf.executing_eagerly() or (tf.is_tensor(tensor) and not isinstance(tensor, tf.Variable)):
        return None
    name = getattr(tensor, "name", None)
    return None if name is None else f"Horovod{kind}_{normalised(str(name))}"


def _check_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    if op == Adasum:
        raise NotImplementedError("Adasum does not take tf.IndexedSlices; sparse_as_dense=True makes tensors of them")
    if op not in (Average, Sum):
        raise NotImplementedError("tf.IndexedSlices can be averaged or added up, and nothing else")
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("prescale_factor and postscale_factor do not apply to tf.IndexedSlices")


def _gather_slices(
    slices: Any, op: int, name: str | None, process_set: ProcessSet, ignore_name_scope: bool
) -> tf.IndexedSlices:
    """Reduce slices by gathering those of all ranks: rows that several ranks have are added up by whoever uses them."""
    number = number_of(process_set)
    names = (None, None) if name is None else (f"{name}_values", f"{name}_indices")
    values = calls.allgather(slices.values, names[0], ignore_name_scope, number)
    indices = calls.allgather(slices.indices, names[1], ignore_name_scope, number)
    if op == Average:
        values = values / tf.cast(size_of(process_set), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def _by_type(tensors: list[Any], name: str | None, call: Callable[[list[Any], str | None], list[Any]]) -> list[Any]:
    """Make one call for the tensors of each type, and return the results in the order of the tensors."""
    places: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
    results: list[Any] = [None] * len(tensors)
    for dtype, group in places.items():
        its_name = name if name is None or len(places) == 1 else f"{name}_{dtype.name}"
        for place, result in zip(group, call([tensors[place] for place in group], its_name)):
            results[place] = result
    return results
