"""Batch normalisation over the batches of all ranks, as if they were one, for Keras 2 and Keras 3.

Both generations compute the statistics of a batch in a method of their own, ``_moments``, and differ in its arguments
only. Batches may differ in size between ranks: what is exchanged are counts, means and sums of squared differences,
from which the statistics of the whole follow without loss of accuracy. One small exchange in each direction.
"""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from ronde._basics import basics
from ronde._collectives import Sum
from ronde.tensorflow import calls
from ronde.tensorflow.reductions import is_elastic

__all__ = ["SyncBatchNormalization"]

_Base: Any = tf.keras.layers.BatchNormalization
_MOMENTS = inspect.signature(_Base._moments)
_KERAS_2 = "reduction_axes" in _MOMENTS.parameters


class SyncBatchNormalization(_Base):
    """Normalises each channel over the batches of all ranks while training; in evaluation like any batch norm.

    >>> import tensorflow as tf, horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.SyncBatchNormalization()(tf.random.normal([4, 3]), training=True).shape.as_list()
    [4, 3]
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        super().__init__(**({"fused": False} if _KERAS_2 else {}), **kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return mean and variance of all ranks' batches; Keras 2 says over which axes, Keras 3 keeps them."""
        if _alone():
            return super()._moments(inputs, *args, **kwargs)
        given = _MOMENTS.bind(self, inputs, *args, **kwargs).arguments
        axes = [int(axis) for axis in (given["reduction_axes"] if _KERAS_2 else self._reduction_axes)]
        mean, variance = _synced_moments(inputs, axes, given.get("mask"))
        return (_beside(mean, axes), _beside(variance, axes)) if given.get("keep_dims") else (mean, variance)


def _alone() -> bool:
    return not is_elastic() and basics.size() == 1


def _synced_moments(inputs: Any, axes: list[int], mask: Any) -> Any:
    inputs = tf.convert_to_tensor(inputs)
    wide = tf.float64 if inputs.dtype == tf.float64 else tf.float32
    # A mask says which positions count; it lacks the channels.
    weights = tf.ones([], wide) if mask is None else tf.cast(tf.convert_to_tensor(mask), wide)[..., tf.newaxis]
    mean, variance = _moments_of_all(tf.cast(inputs, wide), weights, axes)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _moments_of_all(inputs: Any, weights: Any, axes: list[int]) -> Any:
    """Return weighted mean and variance over all ranks, as something that can be differentiated."""

    @tf.custom_gradient
    def moments(inputs: Any) -> Any:
        spread = weights * tf.ones_like(inputs)
        count = tf.reduce_sum(spread, axes)
        own_mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * spread, axes), count)
        differences = inputs - _beside(own_mean, axes)
        own_squares = tf.reduce_sum(tf.square(differences) * spread, axes)
        parts = calls.allgather(
            tf.stack([count, own_mean, own_squares])[tf.newaxis], name=_name("sync_batch_norm_statistics")
        )
        counts, means, squares = parts[:, 0], parts[:, 1], parts[:, 2]
        total = tf.reduce_sum(counts, 0)
        mean = tf.math.divide_no_nan(tf.reduce_sum(means * counts, 0), total)
        all_squares = tf.reduce_sum(squares + counts * tf.square(means - mean), 0)
        variance = tf.math.divide_no_nan(all_squares, total)

        def backward(of_mean: Any, of_variance: Any) -> Any:
            # Every rank has normalised its batch with these numbers, so all of them have something to say.
            sums = calls.allreduce(tf.stack([of_mean, of_variance]), name=_name("sync_batch_norm_gradients"), op=Sum)
            of_mean, of_variance = sums[0], sums[1]
            slope = _beside(of_mean, axes) + 2.0 * (inputs - _beside(mean, axes)) * _beside(of_variance, axes)
            return tf.math.divide_no_nan(spread * slope, _beside(total, axes))

        return (mean, variance), backward

    return moments(inputs)


def _name(name: str) -> str | None:
    """Return a name for an operation in a graph; eagerly they pair up by the order in which the layers come."""
    return None if tf.executing_eagerly() else name


def _beside(channels: Any, axes: list[int]) -> Any:
    """Shape one number a channel so that it applies to a batch."""
    for axis in sorted(axes):
        channels = tf.expand_dims(channels, axis)
    return channels
