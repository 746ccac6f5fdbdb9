"""What there is with TensorFlow only: XLA, slices, legacy optimizers, steps of one's own, ``tf.keras``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy
import pytest
import tensorflow as tf
from trainings import KERAS3, data, mine, network, same_on_all_ranks, same_weights, train_alone, train_together

import horovod.keras as hvd
import horovod.tensorflow as tf_hvd
import horovod.tensorflow.keras as tf_keras_hvd
from ronde.keras import DistributedOptimizer
from ronde.keras.optimizer import is_distributed
from together import on_ranks

SGD = keras.optimizers.SGD
LEGACY = None if KERAS3 else keras.optimizers.legacy


@on_ranks(2)
def test_training_steps_are_not_compiled_with_xla() -> None:
    if KERAS3:
        # As on a machine with a GPU.
        everywhere = mock.patch.object(keras.Model, "_resolve_auto_jit_compile", return_value=True)
    else:
        everywhere = mock.patch.dict(os.environ)
    with everywhere:
        model = train_together(hvd.DistributedOptimizer(SGD(0.1)))
        assert not model.jit_compile
        path = str(Path(tempfile.mkdtemp()) / "model.keras")
        model.save(path)
        loaded = hvd.load_model(path)
        assert not loaded.jit_compile
        inputs, targets = map(mine, data())
        loaded.fit(inputs, targets, epochs=1, verbose=0)
        plain = network()
        plain.compile(SGD(0.1), loss=keras.losses.MeanSquaredError())
        plain.save(path)
        loaded = hvd.load_model(path)
        assert not loaded.jit_compile
        loaded.fit(inputs, targets, epochs=1, verbose=0)
        same_on_all_ranks(loaded)
        if KERAS3:
            # Models without a distributed optimizer are none of our business.
            assert plain.jit_compile


@on_ranks(2)
def test_asking_for_xla_is_refused_when_the_model_is_compiled() -> None:
    for optimizer in (hvd.DistributedOptimizer(SGD(0.1)), tf_keras_hvd.DistributedOptimizer(SGD(0.1))):
        with pytest.raises(ValueError, match="leave jit_compile out"):
            network().compile(optimizer, loss="mse", jit_compile=True)
    network().compile(SGD(0.1), loss="mse", jit_compile=True)
    network().compile(hvd.DistributedOptimizer(SGD(0.1)), loss="mse", jit_compile=False)


@on_ranks(2)
def test_steps_that_run_eagerly() -> None:
    model = train_together(hvd.DistributedOptimizer(SGD(0.1)), run_eagerly=True)
    same_weights(model, train_alone(SGD(0.1)))
    passes = DistributedOptimizer(SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=True)
    same_weights(train_together(passes, run_eagerly=True), train_alone(SGD(0.1), batch=24))


def embedding() -> Any:
    words = keras.Input((2,), dtype="int32")
    model = keras.Sequential([words, keras.layers.Embedding(10, 3), keras.layers.Flatten(), keras.layers.Dense(1)])
    numbers = numpy.random.default_rng(5)
    model.set_weights([numbers.normal(size=weight.shape) for weight in model.get_weights()])
    return model


@on_ranks(2)
def test_slices_are_gathered_or_made_dense() -> None:
    words = numpy.random.default_rng(1).integers(0, 10, (24, 2))
    targets = numpy.random.default_rng(2).normal(size=(24, 1)).astype("float32")
    alone = embedding()
    alone.compile(SGD(0.1), loss="mse")
    alone.fit(words, targets, batch_size=12, epochs=2, shuffle=False, verbose=0)
    for options in (
        {},
        {"sparse_as_dense": True},
        {"groups": 1},
        {"gradient_predivide_factor": 2.0},
        {"op": hvd.Sum},
    ):
        rate = 0.1 / hvd.size() if options.get("op") == hvd.Sum else 0.1
        model = embedding()
        model.compile(DistributedOptimizer(SGD(rate), **options), loss="mse")
        model.fit(mine(words), mine(targets), batch_size=12 // hvd.size(), epochs=2, shuffle=False, verbose=0)
        same_weights(model, alone)


@on_ranks(2)
def test_slices_of_several_passes_are_added_up() -> None:
    words = numpy.random.default_rng(1).integers(0, 10, (24, 2))
    targets = numpy.random.default_rng(2).normal(size=(24, 1)).astype("float32")
    alone = embedding()
    alone.compile(SGD(0.1), loss="mse")
    alone.fit(words, targets, batch_size=24, epochs=1, shuffle=False, verbose=0)
    model = embedding()
    passes = DistributedOptimizer(SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=True)
    model.compile(passes, loss="mse")
    model.fit(mine(words, 12), mine(targets, 12), batch_size=12 // hvd.size(), epochs=1, shuffle=False, verbose=0)
    same_weights(model, alone)


@on_ranks(2)
def test_a_step_of_ones_own_with_two_optimizers() -> None:
    first, second = network(), network(4)
    optimizers = [tf_hvd.DistributedOptimizer(SGD(0.1), op=hvd.Sum), tf_hvd.DistributedOptimizer(SGD(0.1), groups=1)]
    assert all(map(is_distributed, optimizers))
    inputs, targets = map(mine, data())
    for model, optimizer in zip((first, second), optimizers):
        optimizer.build(model.trainable_variables)

    @tf.function
    def step() -> None:
        with tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_mean((model(inputs) - targets) ** 2) for model in (first, second)]
        # Both exchanges are under way at the same time.
        for model, optimizer, loss in zip((first, second), optimizers, losses):
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    step()
    step()
    same_on_all_ranks(first)
    same_on_all_ranks(second)
    # Sum has taken steps twice as long as an average would.
    expected = network()
    expected.compile(SGD(0.2), loss="mse")
    for _ in range(2):
        expected.train_on_batch(*data())
    same_weights(first, expected)


@on_ranks(2)
def test_adasum_is_refused() -> None:
    with pytest.raises(ValueError, match="Adasum"):
        tf_hvd.DistributedOptimizer(SGD(0.1), op=tf_hvd.Adasum)


@on_ranks(2)
def test_the_front_of_tf_keras_trains_too() -> None:
    optimizer = tf_keras_hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1 * 2, momentum=0.5))
    callbacks = [
        tf_keras_hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        tf_keras_hvd.callbacks.MetricAverageCallback(),
        tf_keras_hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=1),
    ]
    assert all(isinstance(callback, tf.keras.callbacks.Callback) for callback in callbacks)
    model = train_together(optimizer, seed=hvd.rank(), callbacks=callbacks)
    same_on_all_ranks(model)
    path = str(Path(tempfile.mkdtemp()) / "model.keras")
    model.save(path)
    assert is_distributed(tf_keras_hvd.load_model(path).optimizer)
    best = tf_keras_hvd.callbacks.BestModelCheckpoint(monitor="loss", save_weights_only=True)
    best.filepath = str(Path(path).with_name("best.weights.h5"))
    train_together(SGD(0.1), callbacks=[best], epochs=1)
    assert Path(best.filepath).exists()


if LEGACY is not None:

    @on_ranks(2)
    def test_legacy_optimizers_learn_what_one_rank_does() -> None:
        model = train_together(hvd.DistributedOptimizer(LEGACY.SGD(0.1, momentum=0.9, clipnorm=0.1)))
        same_weights(model, train_alone(LEGACY.SGD(0.1, momentum=0.9, clipnorm=0.1)))
        passes = DistributedOptimizer(LEGACY.SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=True)
        same_weights(train_together(passes), train_alone(LEGACY.SGD(0.1), batch=24))

    @on_ranks(2)
    def test_legacy_optimizers_are_saved_and_loaded() -> None:
        model = train_together(hvd.DistributedOptimizer(LEGACY.Adam(0.01)))
        folder = Path(tempfile.mkdtemp())
        for name in ("model.h5", "model"):
            model.save(str(folder / name))
            loaded = hvd.load_model(str(folder / name), legacy_opts=True)
            assert is_distributed(loaded.optimizer)
            assert isinstance(loaded.optimizer, LEGACY.Adam)
            if name.endswith(".h5"):
                # From the other format Keras brings back less.
                assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations)
            inputs, targets = map(mine, data())
            loaded.fit(inputs, targets, epochs=1, verbose=0)
            same_on_all_ranks(loaded)

    @on_ranks(2)
    def test_legacy_momentum_is_corrected_and_state_taken_over() -> None:
        schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.1)
        model = train_together(hvd.DistributedOptimizer(LEGACY.SGD(0.1, momentum=0.9)), callbacks=[schedule])
        corrected = train_together(hvd.DistributedOptimizer(SGD(0.1, momentum=0.9)), callbacks=[schedule])
        same_weights(model, corrected)
        again = network()
        again.set_weights(model.get_weights())
        again.compile(hvd.DistributedOptimizer(model.optimizer), loss="mse")
        assert int(again.optimizer.iterations) == int(model.optimizer.iterations)
        state = hvd.elastic.KerasState(model, epoch=1)
        state.sync()
        state.restore()
        same_on_all_ranks(model)

    @on_ranks(2)
    def test_loss_scaling_of_legacy_optimizers() -> None:
        scaled = keras.mixed_precision.LossScaleOptimizer(hvd.DistributedOptimizer(LEGACY.SGD(0.1)))
        same_weights(train_together(scaled), train_alone(SGD(0.1)))
        around = hvd.DistributedOptimizer(keras.mixed_precision.LossScaleOptimizer(LEGACY.SGD(0.1)))
        same_weights(train_together(around), train_alone(SGD(0.1)))


def test_a_graph_of_tensorflow_1_is_broadcast() -> None:
    script = """
        import tensorflow as tf, horovod.keras as hvd
        hvd.init()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            weight = tf.compat.v1.get_variable("weight", initializer=3.0)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(hvd.broadcast_global_variables(0))
            assert session.run(weight) == 3.0
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
