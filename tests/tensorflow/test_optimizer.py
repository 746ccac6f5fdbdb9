"""Optimizers of ``tf.compat.v1.train`` with the gradients of all ranks: in sessions, functions and eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from models import (
    RATE,
    STEPS,
    assert_same,
    batches,
    loss_of,
    network,
    own_part,
    train_alone,
)
from together import on_ranks

v1 = tf.compat.v1


def descent(rate: float = RATE) -> Any:
    return v1.train.GradientDescentOptimizer(rate)


def train_in_session(
    make: Callable[[], Any], parts: Callable[[int], list[tuple[Any, Any]]], hooks: Any = (), **options: Any
) -> tuple[list[Any], int]:
    """Train in a session on what ``parts`` gives for each step; return the weights and the global step."""
    starts = {weight.name.split(":")[0]: weight.numpy() for weight in network()}
    with tf.Graph().as_default():
        weights = [v1.get_variable(name, initializer=value) for name, value in starts.items()]
        words = v1.placeholder(tf.int64, [None, 2])
        classes = v1.placeholder(tf.int64, [None])
        loss = loss_of(weights, words, classes)
        optimizer = hvd.DistributedOptimizer(make(), **options)
        count = v1.train.get_or_create_global_step()
        train = optimizer.minimize(loss, global_step=count)
        with v1.train.SingularMonitoredSession(hooks=list(hooks)) as session:
            for step in range(STEPS):
                for some_words, some_classes in parts(step):
                    session.run(train, {words: some_words, classes: some_classes})
            return session.raw_session().run(weights), int(session.raw_session().run(count))


def own_parts(step: int) -> list[tuple[Any, Any]]:
    words, classes = batches()[step]
    return [(own_part(words), own_part(classes))]


def own_halves(step: int) -> list[tuple[Any, Any]]:
    (words, classes) = own_parts(step)[0]
    return list(zip(np.split(words, 2), np.split(classes, 2)))


@on_ranks(2, 3)
def test_sessions_learn_what_one_process_does() -> None:
    alone = train_alone()
    for options in ({}, {"groups": 2}, {"gradient_predivide_factor": 2.0}, {"sparse_as_dense": True}):
        weights, steps = train_in_session(descent, own_parts, **options)
        assert_same(weights, alone)
        assert steps == STEPS


@on_ranks(2)
def test_hooks_start_from_the_root() -> None:
    def program() -> list[Any]:
        with tf.Graph().as_default():
            weight = v1.get_variable("weight", initializer=tf.constant([hvd.rank() + 1.0]))
            with v1.train.SingularMonitoredSession(hooks=[hvd.BroadcastGlobalVariablesHook(1)]) as session:
                return session.raw_session().run(weight).tolist()

    if hasattr(v1.train, "SessionRunHook"):
        assert program() == [2.0]
    else:
        assert not hasattr(hvd, "BroadcastGlobalVariablesHook")


@on_ranks(2)
def test_several_passes_for_a_step_in_sessions() -> None:
    alone = train_alone()
    weights, steps = train_in_session(
        descent,
        own_halves,
        backward_passes_per_step=2,
        average_aggregated_gradients=True,
        sparse_as_dense=True,
    )
    assert_same(weights, alone)
    assert steps == 2 * STEPS
    weights, _ = train_in_session(
        lambda: descent(RATE / 2), own_halves, backward_passes_per_step=2, sparse_as_dense=True
    )
    assert_same(weights, alone)


@on_ranks(2)
def test_several_passes_with_the_helper_alone() -> None:
    """As other packages use it: eagerly and in functions."""
    for in_graph in (False, True):
        for average, local in ((False, False), (True, True)):
            weights = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
            helper = LocalGradientAggregationHelperEager(
                2, lambda grads, _: [hvd.allreduce(grad) for grad in grads], False, average
            )
            if local:
                helper.register_local_var(weights[1])

            def take(factor: Any, weights: Any = weights, helper: Any = helper) -> Any:
                pairs = [tf.ones([2]) * factor, None, tf.ones([1]) * factor]
                found = helper.compute_gradients(pairs, [weights[0], weights[0], weights[1]])
                applied = [(found[0], weights[0]), (found[2], weights[1])]

                def apply() -> Any:
                    return tf.group(*[weight.assign_sub(grad) for grad, weight in applied])

                helper.apply_gradients(apply, None, applied)
                return [found[0], found[2]]

            run = tf.function(take) if in_graph else take
            rank = hvd.rank()
            for _ in range(2):
                before = [weight.numpy() for weight in weights]
                first = run(tf.constant(rank + 1.0))
                # Nothing has travelled yet, and nothing is applied.
                assert [float(item[0]) for item in first] == [rank + 1.0, rank + 1.0]
                assert_same([weight.numpy() for weight in weights], before)
                second = run(tf.constant(10.0))
                # On average 1.5 + 10; what stays on the rank is divided by two.
                expected = [11.5, (rank + 11.0) / 2.0 if local else 11.5]
                expected = [value / 2.0 for value in expected] if average else expected
                assert [float(item[0]) for item in second] == expected
                assert_same([weight.numpy() for weight in weights], [old - now for old, now in zip(before, expected)])


@on_ranks(2)
def test_several_passes_need_dense_gradients() -> None:
    with pytest.raises(ValueError, match="sparse_as_dense"):
        train_in_session(descent, own_parts, backward_passes_per_step=2)


@on_ranks(2)
def test_eagerly_and_in_functions() -> None:
    alone = train_alone()
    for in_graph in (False, True):
        weights = network()
        optimizer = hvd.DistributedOptimizer(descent())

        def step(words: Any, classes: Any, weights: Any = weights, optimizer: Any = optimizer) -> None:
            pairs = optimizer.compute_gradients(lambda: loss_of(weights, words, classes), weights)
            optimizer.apply_gradients(pairs)

        run = tf.function(step) if in_graph else step
        for words, classes in batches():
            run(tf.constant(own_part(words)), tf.constant(own_part(classes)))
        assert_same(weights, alone)


@on_ranks(2)
def test_slots_are_those_of_the_wrapped_optimizer() -> None:
    weight = tf.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.5, 0.9))
    assert isinstance(optimizer, v1.train.Optimizer)
    assert optimizer.get_name() == "DistributedMomentumOptimizer"
    pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(weight) * (hvd.rank() + 1.0), [weight])
    optimizer.apply_gradients(pairs)
    assert optimizer.get_slot_names() == ["momentum"]
    assert optimizer.get_slot(weight, "momentum").numpy().tolist() == [1.5, 1.5]
    assert weight.numpy().tolist() == [0.25, 1.25]
    assert len(optimizer.variables()) == 1


@on_ranks(2)
def test_local_variables() -> None:
    shared, own = tf.Variable([1.0]), tf.Variable([1.0])
    for scale, divisor in ((True, 2.0), (False, 1.0)):
        optimizer = hvd.DistributedOptimizer(descent(1.0), scale_local_gradients=scale)
        optimizer.register_local_var(own)
        loss = lambda: tf.reduce_sum(shared + own) * (hvd.rank() + 1.0)  # noqa: E731
        gradients = optimizer.compute_gradients(loss, [shared, own])
        assert [float(gradient[0]) for gradient, _ in gradients] == [1.5, (hvd.rank() + 1.0) / divisor]


@on_ranks(2)
def test_adasum_combines_the_steps_of_the_ranks() -> None:
    rank = hvd.rank()
    for passes in (1, 2):
        weight = tf.Variable([5.0, 5.0])
        optimizer = hvd.DistributedOptimizer(descent(1.0), op=hvd.Adasum, backward_passes_per_step=passes)
        for _ in range(passes):
            pairs = optimizer.compute_gradients(lambda weight=weight: weight[rank] * (rank + 1.0), [weight])
            optimizer.apply_gradients(pairs)
        # The ranks' steps are at a right angle, so both are taken whole.
        np.testing.assert_allclose(weight.numpy(), [5.0 - passes, 5.0 - 2.0 * passes], rtol=1e-5)
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=tf.constant([5.0, 5.0]))
        optimizer = hvd.DistributedOptimizer(descent(1.0), op=hvd.Adasum, backward_passes_per_step=2)
        train = optimizer.minimize(weight[rank] * (rank + 1.0))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(4):
                session.run(train)
            np.testing.assert_allclose(session.run(weight), [1.0, -3.0], rtol=1e-5)


@on_ranks(2)
def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match="eager execution"):
        hvd.DistributedOptimizer(descent(), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="predivide"):
        hvd.DistributedOptimizer(descent(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="legacy TensorFlow or Keras"):
        hvd.DistributedOptimizer(object())
    with pytest.raises(ValueError, match="Adasum"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum)
    with pytest.raises(RuntimeError, match="eager"):
        hvd.broadcast_global_variables(0)


@on_ranks(2)
def test_optimizers_of_keras_get_every_option() -> None:
    """Of all options, the sum and the groups were once lost on the way to Keras."""
    weights = [tf.Variable([1.0]), tf.Variable([2.0])]
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=hvd.Sum, groups=[weights])
    assert type(optimizer).__name__ == "SGD"
    optimizer.apply_gradients([(tf.constant([hvd.rank() + 1.0]), weight) for weight in weights])
    assert [float(weight[0]) for weight in weights] == [-2.0, -1.0]
