"""What TensorFlow has to know of the operations to differentiate through them.

The gradient of an exchange is another exchange, so every rank that runs a forward pass has to run the backward pass as
well. The rules are Horovod's: what several ranks have received is averaged on the way back, except through a sum.
Importing this module registers them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ronde._collectives import Average, Sum
from ronde.tensorflow import calls

__all__: list[str] = []

for _name in ("Size", "LocalSize", "Rank", "LocalRank", "ProcessSetIncluded", "Join"):
    tf.no_gradient(f"Horovod{_name}")


def _where(operation: Any) -> dict[str, Any]:
    """Return the attributes that a gradient's exchange takes over from that of the forward pass, and its name."""
    if tf.executing_eagerly():
        name = None
    else:
        forward = operation.get_attr("tensor_name")
        forward = forward.decode() if isinstance(forward, bytes) else forward
        name = f"{(forward or operation.name).rpartition('/')[2]}_grad"
    return {
        "name": name,
        "ignore_name_scope": operation.get_attr("ignore_name_scope"),
        "process_set_id": operation.get_attr("process_set_id"),
    }


def _factors(operation: Any) -> dict[str, Any]:
    return {
        "prescale_factor": operation.get_attr("prescale_factor"),
        "postscale_factor": operation.get_attr("postscale_factor"),
    }


def _dense(operation: Any, gradients: Any) -> list[Any]:
    """Return gradients as tensors of the outputs' types: what is not used may come as zeros of another type."""
    return [tf.cast(tf.convert_to_tensor(item), output.dtype) for item, output in zip(gradients, operation.outputs)]


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce(operation: Any, gradient: Any) -> Any:
    return calls.allreduce(
        tf.convert_to_tensor(gradient),
        op=operation.get_attr("reduce_op"),
        **_factors(operation),
        **_where(operation),
    )


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _grouped_allreduce(operation: Any, *gradients: Any) -> Any:
    return calls.grouped_allreduce(
        _dense(operation, gradients),
        op=operation.get_attr("reduce_op"),
        **_factors(operation),
        **_where(operation),
    )


@tf.RegisterGradient("HorovodAllgather")
def _allgather(operation: Any, gradient: Any) -> Any:
    averaged = calls.allreduce(tf.convert_to_tensor(gradient), op=Average, **_where(operation))
    (rows,) = _own_rows(operation, [averaged])
    return rows


@tf.RegisterGradient("HorovodGroupedAllgather")
def _grouped_allgather(operation: Any, *gradients: Any) -> Any:
    averaged = calls.grouped_allreduce(_dense(operation, gradients), op=Average, **_where(operation))
    return _own_rows(operation, averaged)


def _own_rows(operation: Any, gathered: list[Any]) -> list[Any]:
    """Take this rank's rows out of what all ranks have gathered; how many each gave is exchanged once more."""
    rows = tf.stack([tf.shape(tensor)[0] for tensor in operation.inputs])
    rank = calls.rank_op()
    table = calls.allgather(tf.concat([[rank], rows], axis=0)[tf.newaxis], **_where(operation))
    lower = tf.cast(table[:, :1] < rank, tf.int32)
    before = tf.reduce_sum(lower * table[:, 1:], axis=0)
    return [item[before[place] : before[place] + rows[place]] for place, item in enumerate(gathered)]


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast(operation: Any, gradient: Any) -> Any:
    averaged = calls.allreduce(tf.convert_to_tensor(gradient), op=Average, **_where(operation))
    is_root = tf.equal(calls.rank_op(), operation.get_attr("root_rank"))
    # Nothing on the other ranks had an influence.
    return tf.where(is_root, averaged, tf.zeros_like(averaged))


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall(operation: Any, gradient: Any, _: Any) -> Any:
    received = operation.outputs[1]
    returned, _splits = calls.alltoall(tf.convert_to_tensor(gradient), received, **_where(operation))
    # Rows that the splits left out went nowhere.
    kept = tf.shape(operation.inputs[0])[0] - tf.shape(returned)[0]
    rest = [[0, 0]] * (returned.shape.rank - 1)
    padded = tf.pad(returned, tf.concat([[[0, kept]], tf.reshape(tf.constant(rest, tf.int32), [-1, 2])], axis=0))
    return padded, None


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter(operation: Any, gradient: Any) -> Any:
    scaled = _scaled(operation, [tf.convert_to_tensor(gradient)])
    return calls.allgather(scaled[0], **_where(operation))


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _grouped_reducescatter(operation: Any, *gradients: Any) -> Any:
    return calls.grouped_allgather(_scaled(operation, _dense(operation, gradients)), **_where(operation))


def _scaled(operation: Any, gradients: list[Any]) -> list[Any]:
    factor = operation.get_attr("prescale_factor") * operation.get_attr("postscale_factor")
    if operation.get_attr("reduce_op") == Sum:
        size = calls.size_op(process_set_id=operation.get_attr("process_set_id"))
        gradients = [item * tf.cast(size, item.dtype) for item in gradients]
    return gradients if factor == 1.0 else [item * tf.cast(factor, item.dtype) for item in gradients]
