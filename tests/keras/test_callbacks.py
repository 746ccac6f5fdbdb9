"""The callbacks: what they do to models, logs and learning rates."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy
import pytest
from trainings import BACKEND, KERAS3, data, network, same_on_all_ranks, train_together

import horovod.keras as hvd
from ronde.keras.flavours import learning_rate_of, own_variables, to_numpy
from together import on_ranks

SGD = keras.optimizers.SGD


class Rates(keras.callbacks.Callback):
    """Writes down the learning rate of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        self.seen.append(learning_rate_of(self.model.optimizer))


def slope(targets: Any, outputs: Any) -> Any:
    """Be a loss whose gradient is the same whatever the weights."""
    return outputs + 0 * targets


def train_one_weight(optimizer: Any, callbacks: list[Any], epochs: int, batches: int) -> float:
    """Train one weight, whose gradient is always 1, and return it; it was 0."""
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.build((None, 1))
    model.compile(optimizer, loss=slope)
    ones = numpy.ones((2 * batches, 1), "float32")
    model.fit(ones, ones, batch_size=2, epochs=epochs, verbose=0, callbacks=callbacks)
    return float(model.get_weights()[0][0, 0])


@on_ranks(2)
def test_all_ranks_start_from_the_variables_of_one() -> None:
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * (1 + hvd.rank())))
    assert not callback.broadcast_done
    model = train_together(optimizer, seed=hvd.rank(), callbacks=[callback])
    assert callback.broadcast_done
    same_on_all_ranks(model)
    assert learning_rate_of(optimizer) == pytest.approx(0.02)
    for variable in own_variables(optimizer):
        values = hvd.allgather(to_numpy(variable).reshape(1, -1))
        numpy.testing.assert_array_equal(values[0], values[1])


@on_ranks(2)
def test_local_variables_are_left_out_of_the_broadcast() -> None:
    model = network(hvd.rank())
    kernel = model.layers[0].kernel
    # The learning rate is 0, so only the broadcast changes anything.
    model.compile(hvd.DistributedOptimizer(SGD(0.0)), loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[kernel])
    callback.register_local_var(model.layers[0].bias)
    model.fit(*data(), epochs=1, verbose=0, callbacks=[callback])
    for found, own in zip(model.layers[0].get_weights(), network(hvd.rank()).layers[0].get_weights()):
        numpy.testing.assert_array_equal(found, own)
    for found, root in zip(model.layers[1].get_weights(), network(0).layers[1].get_weights()):
        numpy.testing.assert_array_equal(found, root)


@on_ranks(2)
def test_models_that_differ_are_not_broadcast() -> None:
    model = network() if hvd.rank() == 0 else keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(SGD(0.1), loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    with pytest.raises(ValueError, match=r"has \d weights .* but on rank \d it is \d"):
        callback.on_batch_end(0)


@on_ranks(2, 3)
def test_metrics_are_averaged_in_place() -> None:
    logs = {"loss": float(hvd.rank()), "count": hvd.rank() + 1, "note": "as it is", "accuracy": numpy.float32(0.5)}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    size = hvd.size()
    assert logs == {"loss": (size - 1) / 2, "count": (size + 1) / 2, "note": "as it is", "accuracy": 0.5}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, None)


@on_ranks(2)
def test_a_constant_multiplier_decays_from_epoch_to_epoch() -> None:
    rates = Rates()
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.4, multiplier=0.5, start_epoch=1, end_epoch=3)
    history = train_together(hvd.DistributedOptimizer(SGD(0.8)), epochs=4, callbacks=[schedule, rates]).history
    numpy.testing.assert_allclose(rates.seen[::4], [0.8, 0.4, 0.2, 0.2], rtol=1e-6)
    assert history.history["lr"] == pytest.approx([0.8, 0.4, 0.2, 0.2])


@on_ranks(2)
def test_a_function_is_followed_batch_by_batch() -> None:
    rates = Rates()
    schedule = hvd.callbacks.LearningRateScheduleCallback(1.0, lambda epoch: 1 / (1 + epoch), staircase=False)
    train_together(hvd.DistributedOptimizer(SGD(1.0)), epochs=2, callbacks=[schedule, rates])
    numpy.testing.assert_allclose(rates.seen, [1 / (1 + batch / 4) for batch in range(8)], rtol=1e-6)
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.5)


@on_ranks(2, 3)
def test_warm_up_rises_from_the_rate_of_one_rank_to_that_of_all() -> None:
    rates, size, epochs, batches = Rates(), hvd.size(), 2, 4
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.1 * size, warmup_epochs=epochs, verbose=1)
    train_together(hvd.DistributedOptimizer(SGD(0.1 * size)), epochs=3, callbacks=[warm_up, rates])
    expected = [
        0.1 * size * ((batch + 1) / batches * (size - 1) / epochs + 1) / size for batch in range(epochs * batches)
    ]
    numpy.testing.assert_allclose(rates.seen, expected + [0.1 * size] * batches, rtol=1e-6)


def expected_weight(rates: list[float], momentum: float, corrected: bool) -> float:
    """Return where a weight is whose gradient is always 1: SGD by its formula."""
    weight = kept = 0.0
    before = None
    for rate in rates:
        growth = rate / before if corrected and before is not None else 1.0
        kept = momentum * growth * kept - rate
        weight += kept
        before = rate
    return weight


@on_ranks(2)
def test_momentum_is_corrected_when_the_rate_changes() -> None:
    rates = [0.1, 0.1, 0.1, 0.01, 0.01, 0.01]
    for correction in (True, False):
        schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.1, momentum_correction=correction)
        optimizer = hvd.DistributedOptimizer(SGD(0.1, momentum=0.9))
        weight = train_one_weight(optimizer, [schedule], epochs=2, batches=3)
        assert weight == pytest.approx(expected_weight(rates, 0.9, correction), rel=1e-5)
        assert float(optimizer.momentum) == pytest.approx(0.9)


@on_ranks(2)
def test_a_schedule_of_keras_is_multiplied() -> None:
    decay = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.4, 0.2])
    optimizer = hvd.DistributedOptimizer(SGD(decay))
    halve = hvd.callbacks.LearningRateScheduleCallback(7.0, 0.5)
    if BACKEND == "jax":
        with pytest.raises(ValueError, match="make the optimizer with a number"):
            train_one_weight(optimizer, [halve], epochs=2, batches=3)
        return
    plain = keras.optimizers.serialize(optimizer)
    weight = train_one_weight(optimizer, [halve], epochs=2, batches=3)
    # The first boundary is passed with the step after it: steps 0 to 3 have the first rate.
    rates = [0.4, 0.4, 0.4, 0.5 * 0.4, 0.5 * 0.2, 0.5 * 0.2]
    assert weight == pytest.approx(-sum(rates), rel=1e-5)
    assert keras.optimizers.serialize(optimizer) == plain
    # A step that was compiled for the schedule alone is compiled anew for a callback that comes later.
    again = hvd.DistributedOptimizer(SGD(decay))
    model = network()
    model.compile(again, loss="mse")
    model.fit(*data(), epochs=1, verbose=0)
    before = model.get_weights()
    model.fit(*data(), epochs=1, verbose=0, callbacks=[hvd.callbacks.LearningRateScheduleCallback(1.0, lambda _: 0.0)])
    for new, old in zip(model.get_weights(), before):
        numpy.testing.assert_array_equal(new, old)


@on_ranks(2)
def test_the_best_model_is_kept() -> None:
    checkpoint = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    with pytest.raises(ValueError, match="filepath"):
        train_together(SGD(0.1), callbacks=[checkpoint])
    # Checkpoints of Keras 2.13 cannot be in the newer format.
    path = Path(tempfile.mkdtemp()) / ("best.keras" if KERAS3 else "best.h5")
    checkpoint.filepath = str(path)
    model = train_together(SGD(0.1), callbacks=[checkpoint])
    best = hvd.load_model(str(path))
    assert len(best.get_weights()) == len(model.get_weights())
