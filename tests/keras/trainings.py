"""Small trainings that the checks have in common, each done by all ranks together or by one on its own.

A batch of the job is shared out over the ranks, so what they learn together is what one rank learns from whole batches.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy

import horovod.keras as hvd

KERAS3 = hasattr(keras, "config")
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
ROWS, BATCH = 48, 12


def data() -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return inputs and targets, the same on all ranks."""
    numbers = numpy.random.default_rng(7)
    inputs = numbers.normal(size=(ROWS, 4)).astype("float32")
    return inputs, numpy.tanh(inputs @ numbers.normal(size=(4, 2))).astype("float32")


def network(seed: int = 3) -> Any:
    """Return a model whose weights depend on the seed only."""
    model = keras.Sequential(
        [
            # Keras 3 cannot train what it has loaded from an .h5 file where this is left out.
            keras.Input((4,)),
            keras.layers.Dense(5, activation="tanh", name="first"),
            keras.layers.Dense(2, name="second"),
        ]
    )
    numbers = numpy.random.default_rng(seed)
    model.set_weights([numbers.normal(size=weight.shape, scale=0.5) for weight in model.get_weights()])
    return model


def mine(array: numpy.ndarray, batch: int = BATCH) -> numpy.ndarray:
    """Return this rank's part of each batch."""
    share = batch // hvd.size()
    batches = array.reshape(-1, batch, *array.shape[1:])
    return batches[:, hvd.rank() * share :][:, :share].reshape(-1, *array.shape[1:])


def train_alone(optimizer: Any, epochs: int = 2, batch: int = BATCH, callbacks: Sequence[Any] = ()) -> Any:
    """Train a model on whole batches, without other ranks."""
    model = network()
    model.compile(optimizer, loss=keras.losses.MeanSquaredError())
    model.fit(*data(), batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def train_together(
    optimizer: Any, epochs: int = 2, seed: int | None = None, callbacks: Sequence[Any] = (), **compile_options: Any
) -> Any:
    """Train a model on this rank's part of each batch."""
    model = network(3 if seed is None else seed)
    # Not "mse", which Keras 3 cannot load again from an .h5 file.
    model.compile(optimizer, loss=keras.losses.MeanSquaredError(), **compile_options)
    inputs, targets = map(mine, data())
    share = BATCH // hvd.size()
    model.fit(inputs, targets, batch_size=share, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def same_weights(model: Any, other: Any, tolerance: float = 1e-5) -> None:
    """Compare what two models have learned."""
    ours, theirs = model.get_weights(), other.get_weights()
    # A model that was not built has none.
    assert len(ours) == len(theirs) > 0
    for found, expected in zip(ours, theirs):
        numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def same_on_all_ranks(model: Any) -> None:
    """Compare what all ranks have learned, bit by bit."""
    flat = numpy.concatenate([weight.ravel() for weight in model.get_weights()])
    for other in hvd.allgather(flat[None]):
        numpy.testing.assert_array_equal(other, flat)


def moved(model: Any) -> bool:
    """Tell whether training has changed a model that `network()` has made."""
    return any((new != old).any() for new, old in zip(model.get_weights(), network().get_weights()))
