"""Trainings with ``fit`` on two ranks learn what one rank learns from the whole batches."""

from __future__ import annotations

import keras
import numpy
import pytest
from trainings import (
    BATCH,
    data,
    mine,
    moved,
    network,
    same_on_all_ranks,
    same_weights,
    train_alone,
    train_together,
)

import horovod.keras as hvd
from ronde.keras import DistributedOptimizer, PartialDistributedOptimizer
from ronde.process_sets import add_process_set, remove_process_set
from together import on_ranks

SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam


@on_ranks(2, 3)
def test_sgd_with_momentum_learns_what_one_rank_does() -> None:
    model = train_together(hvd.DistributedOptimizer(SGD(0.1, momentum=0.9, nesterov=True)))
    same_weights(model, train_alone(SGD(0.1, momentum=0.9, nesterov=True)))
    same_on_all_ranks(model)
    assert moved(model)


@on_ranks(2)
def test_adam_with_weight_decay_learns_what_one_rank_does() -> None:
    same_weights(
        train_together(hvd.DistributedOptimizer(Adam(0.01, weight_decay=0.01))),
        train_alone(Adam(0.01, weight_decay=0.01)),
        1e-4,
    )


@on_ranks(2)
def test_gradients_are_clipped_after_they_are_reduced() -> None:
    same_weights(
        train_together(hvd.DistributedOptimizer(SGD(0.5, clipnorm=0.05))), train_alone(SGD(0.5, clipnorm=0.05))
    )
    same_weights(
        train_together(hvd.DistributedOptimizer(SGD(0.5, global_clipnorm=0.05))),
        train_alone(SGD(0.5, global_clipnorm=0.05)),
    )


@on_ranks(2)
def test_a_sum_is_an_average_with_a_larger_rate() -> None:
    model = train_together(DistributedOptimizer(SGD(0.1 / hvd.size()), op=hvd.Sum))
    same_weights(model, train_alone(SGD(0.1)))


@on_ranks(2)
def test_dividing_before_the_sum_groups_and_narrow_types_teach_the_same() -> None:
    expected = train_alone(SGD(0.1))
    same_weights(train_together(DistributedOptimizer(SGD(0.1), gradient_predivide_factor=2.0)), expected)
    same_weights(train_together(DistributedOptimizer(SGD(0.1), groups=2)), expected)
    same_weights(train_together(DistributedOptimizer(SGD(0.1), compression=hvd.Compression.fp16)), expected, 2e-3)
    with pytest.warns(DeprecationWarning, match="num_groups is deprecated"):
        optimizer = DistributedOptimizer(SGD(0.1), num_groups=1)
    same_weights(train_together(optimizer), expected)


@on_ranks(2)
def test_groups_of_variables() -> None:
    model = network()
    variables = model.trainable_variables
    optimizer = DistributedOptimizer(SGD(0.1), groups=[[variables[0], variables[3]], [variables[1]]])
    model.compile(optimizer, loss="mse")
    inputs, targets = map(mine, data())
    model.fit(inputs, targets, batch_size=BATCH // hvd.size(), epochs=2, shuffle=False, verbose=0)
    same_weights(model, train_alone(SGD(0.1)))


@on_ranks(2)
def test_several_passes_for_a_step() -> None:
    passes = 2
    # One rank that sees the batches of both passes at once.
    expected = train_alone(SGD(0.1), batch=BATCH * passes)
    optimizer = DistributedOptimizer(SGD(0.1), backward_passes_per_step=passes, average_aggregated_gradients=True)
    model = train_together(optimizer)
    same_weights(model, expected)
    same_on_all_ranks(model)
    # Every pass counts as an iteration, as schedules expect.
    batches = 2 * len(data()[0]) // BATCH
    assert int(optimizer.iterations) == batches
    added_up = DistributedOptimizer(SGD(0.1 / passes), backward_passes_per_step=passes)
    same_weights(train_together(added_up), expected)


@on_ranks(2)
def test_nothing_is_applied_before_the_last_pass() -> None:
    model = network()
    model.compile(DistributedOptimizer(SGD(0.1), backward_passes_per_step=3), loss="mse")
    inputs, targets = data()
    for step in range(1, 7):
        before = model.get_weights()
        model.train_on_batch(inputs + hvd.rank(), targets)
        changed = any((new != old).any() for new, old in zip(model.get_weights(), before))
        assert changed == (step % 3 == 0), f"after pass {step}"
    same_on_all_ranks(model)


@on_ranks(2)
def test_local_layers_keep_their_own_gradients() -> None:
    model = network()
    optimizer = PartialDistributedOptimizer(SGD(0.1), local_layers=model.layers[0], scale_local_gradients=False)
    model.compile(optimizer, loss="mse")
    inputs, targets = data()
    inputs = inputs * (1 + hvd.rank())
    model.fit(inputs, targets, batch_size=len(inputs), epochs=1, shuffle=False, verbose=0)
    kernels = hvd.allgather(model.layers[0].get_weights()[0][None])
    assert (kernels[0] != kernels[1]).any()
    own = network()
    own.compile(SGD(0.1), loss="mse")
    own.fit(inputs, targets, batch_size=len(inputs), epochs=1, shuffle=False, verbose=0)
    numpy.testing.assert_allclose(kernels[hvd.rank()], own.layers[0].get_weights()[0], rtol=1e-5, atol=1e-6)
    shared = hvd.allgather(model.layers[1].get_weights()[0][None])
    numpy.testing.assert_array_equal(shared[0], shared[1])
    average = hvd.allreduce(own.layers[1].get_weights()[0])
    numpy.testing.assert_allclose(shared[0], average, rtol=1e-5, atol=1e-6)


@on_ranks(2)
def test_local_variables_are_divided_by_the_number_of_ranks() -> None:
    model = network()
    optimizer = DistributedOptimizer(SGD(0.1))
    for variable in model.layers[0].trainable_variables:
        optimizer.register_local_var(variable)
    model.compile(optimizer, loss="mse")
    inputs, targets = data()
    model.fit(inputs, targets, batch_size=len(inputs), epochs=1, shuffle=False, verbose=0)
    half = network()
    half.compile(SGD(0.1 / hvd.size()), loss="mse")
    half.fit(inputs, targets, batch_size=len(inputs), epochs=1, shuffle=False, verbose=0)
    for found, expected in zip(model.layers[0].get_weights(), half.layers[0].get_weights()):
        numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@on_ranks(2)
def test_ranks_outside_of_the_process_set_train_alone() -> None:
    alone = add_process_set([1])
    model = network()
    model.compile(DistributedOptimizer(SGD(0.1), process_set=alone), loss="mse")
    inputs, targets = data()
    inputs = inputs * (1 + hvd.rank())
    model.fit(inputs, targets, batch_size=len(inputs), epochs=1, shuffle=False, verbose=0)
    own = network()
    own.compile(SGD(0.1), loss="mse")
    own.fit(inputs, targets, batch_size=len(inputs), epochs=1, shuffle=False, verbose=0)
    same_weights(model, own)
    hvd.allreduce(0.0, name="both are done with the set")
    remove_process_set(alone)


@on_ranks(2)
def test_a_used_optimizer_keeps_its_moments() -> None:
    model, reference = network(), network()
    for each in (model, reference):
        each.compile(Adam(0.01), loss="mse")
        each.fit(*data(), batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    model.compile(hvd.DistributedOptimizer(model.optimizer), loss="mse")
    assert int(model.optimizer.iterations) == int(reference.optimizer.iterations) == len(data()[0]) // BATCH
    inputs, targets = map(mine, data())
    model.fit(inputs, targets, batch_size=BATCH // hvd.size(), epochs=1, shuffle=False, verbose=0)
    reference.fit(*data(), batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    same_weights(model, reference, 1e-4)


@on_ranks(2)
def test_a_rank_that_has_made_more_layers_still_finds_the_others() -> None:
    if hvd.rank() == 0:
        train_alone(SGD(0.1), epochs=1)
        keras.Sequential([keras.layers.Dense(1)]).build((None, 1))
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(2)])
    model.build((None, 4))
    model.compile(hvd.DistributedOptimizer(SGD(0.1)), loss="mse")
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    inputs, targets = map(mine, data())
    model.fit(inputs, targets, batch_size=6, epochs=1, verbose=0, callbacks=[broadcast])
    same_on_all_ranks(model)


@on_ranks(2)
def test_two_optimizers_in_one_step() -> None:
    first, second = network(), network(4)
    both = [hvd.DistributedOptimizer(SGD(0.1)), hvd.DistributedOptimizer(SGD(0.1))]
    first.compile(both[0], loss="mse")
    second.compile(both[1], loss="mse")
    inputs, targets = map(mine, data())
    for _ in range(2):
        first.train_on_batch(inputs, targets)
        second.train_on_batch(inputs, targets)
    same_on_all_ranks(first)
    same_on_all_ranks(second)


@on_ranks(2)
def test_digits_are_learned() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
    model.build((None, 64))
    model.compile(
        hvd.DistributedOptimizer(Adam(0.005 * hvd.size())),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.005 * hvd.size(), warmup_epochs=2),
    ]
    share = slice(hvd.rank(), 1400, hvd.size())
    model.fit(images[share], labels[share], batch_size=32, epochs=8, verbose=0, callbacks=callbacks)
    same_on_all_ranks(model)
    _, accuracy = model.evaluate(images[1400:], labels[1400:], verbose=0)
    assert accuracy > 0.88


@on_ranks(2)
def test_what_cannot_be_done_is_refused() -> None:
    for options, message in [
        ({"op": 2}, "op currently only supports Average and Sum"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"groups": 0}, "groups should be"),
        ({"groups": "two"}, "groups should be"),
        ({"backward_passes_per_step": 0}, "at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            DistributedOptimizer(SGD(0.1), **options)
    with pytest.raises(ValueError, match="expected an optimizer of Keras"):
        DistributedOptimizer(object())


@on_ranks(2)
def test_ranks_that_disagree_hear_of_it() -> None:
    model = keras.Sequential([keras.layers.Dense(2)])
    model.build((None, 4 + hvd.rank()))
    model.compile(hvd.DistributedOptimizer(SGD(0.1)), loss="mse")
    inputs = numpy.ones((4, 4 + hvd.rank()), "float32")
    with pytest.raises(Exception, match="shape"):
        model.train_on_batch(inputs, numpy.ones((4, 2), "float32"))
