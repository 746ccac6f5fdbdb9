"""The states of an elastic training, and the loop around the training function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from together import on_ranks

v1 = tf.compat.v1


def test_only_a_lost_rank_is_an_error_of_the_job() -> None:
    hvd.init()
    state = hvd.elastic.TensorFlowState(variables=[], tries=0)
    lost = tf.errors.UnknownError(None, None, 'HorovodAllreduce "x": rank 1 was lost')

    @hvd.elastic.run
    def train(state: Any, errors: list[Exception]) -> str:
        state.tries += 1
        if errors:
            raise errors.pop(0)
        return "done"

    assert train(state, [lost, HorovodInternalError("lost"), HostsUpdatedInterrupt()]) == "done"
    # Horovod took these for success, and returned None.
    for own in (tf.errors.UnknownError(None, None, "the disk is on fire"), ValueError("mine")):
        with pytest.raises(type(own)):
            train(state, [own])
    hvd.shutdown()


def test_a_failure_goes_back_to_the_last_commit() -> None:
    hvd.init()
    weight = tf.Variable([1.0])
    state = hvd.elastic.TensorFlowState(variables=[weight], epoch=0)
    seen = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        seen.append((state.epoch, float(weight[0])))
        if state.epoch == 0:
            weight.assign([2.0])
            state.epoch = 1
            state.commit()
        if len(seen) == 1:
            weight.assign([3.0])
            state.epoch = 2
            raise HorovodInternalError("lost")

    train(state)
    assert seen == [(0, 1.0), (1, 2.0)]
    hvd.shutdown()


@on_ranks(2)
def test_functions_go_on_after_joining_anew() -> None:
    weight = tf.Variable([hvd.rank() + 1.0])
    state = hvd.elastic.TensorFlowState(variables=[weight], step=0)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight)
        weight.assign_sub(hvd.DistributedGradientTape(tape).gradient(loss, [weight])[0])
        return weight.read_value()

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < 4:
            values.append(float(step()[0]))
            state.step += 1
            if state.step == 2:
                state.commit()
            if len(values) == 3:
                raise tf.errors.UnknownError(None, None, "HorovodAllreduce: rank 7 was lost")

    values: list[float] = []
    train(state)
    # All began with rank 0's 1; the third step was lost.
    assert values == [0.0, -1.0, -2.0, -2.0, -3.0]


@on_ranks(2)
def test_variables_are_saved_restored_and_taken_over() -> None:
    rank = hvd.rank()
    variables = [tf.Variable([rank + 1.0, 5.0]), tf.Variable(rank)]
    state = hvd.elastic.TensorFlowState(variables=variables, epoch=10 * rank, batch=0)
    assert (state.epoch, state.batch) == (10 * rank, 0)
    variables[0].assign([9.0, 9.0])
    state.epoch = 99
    state.restore()
    assert variables[0].numpy().tolist() == [rank + 1.0, 5.0]
    assert state.epoch == 10 * rank
    # Horovod broadcast eager variables in the constructor only.
    state.sync()
    assert variables[0].numpy().tolist() == [1.0, 5.0]
    assert (int(variables[1]), state.epoch) == (0, 0)
    variables[0].assign([7.0, 7.0])
    state.restore()
    assert variables[0].numpy().tolist() == [1.0, 5.0]


@on_ranks(2)
def test_variables_of_sessions() -> None:
    rank = hvd.rank()
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=tf.constant([rank + 1.0]))
        session.run(v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, epoch=rank)
        session.run(weight.assign([7.0]))
        state.restore()
        assert session.run(weight).tolist() == [rank + 1.0]
        for _ in range(2):
            state.sync()
        assert session.run(weight).tolist() == [1.0]
        assert state.epoch == 0


def optimizers() -> list[Any]:
    """Return an optimizer of each generation that this TensorFlow has."""
    found = [tf.keras.optimizers.Adam(0.1)]
    if not hasattr(tf.keras, "ops"):
        found.append(tf.keras.optimizers.legacy.Adam(0.1))
    return found


@on_ranks(2)
def test_models_and_optimizers() -> None:
    rank = hvd.rank()
    with pytest.raises(ValueError, match="built"):
        hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(1)]))
    for optimizer in optimizers():
        start = tf.keras.initializers.Constant(rank + 1.0)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer=start)])
        model.build([None, 2])
        state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=rank)

        def step(model: Any = model, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(tf.ones([1, 2])))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        def values(model: Any = model, optimizer: Any = optimizer) -> list[Any]:
            variables = optimizer.variables
            of_optimizer = variables() if callable(variables) else variables
            return [np.array(item) for item in [*model.get_weights(), *map(tf.convert_to_tensor, of_optimizer)]]

        # Only one rank has trained; the other makes the optimizer's variables to take them over.
        if rank == 0:
            step()
            state.save()
        saved = values()
        step()
        assert not all_equal(values(), saved)
        state.restore()
        assert all_equal(values(), saved)
        state.sync()
        assert state.epoch == 0
        everybodys = hvd.allgather_object(values())
        assert all_equal(everybodys[0], everybodys[1])
        assert all_equal(values(), saved if rank == 0 else everybodys[0])


def all_equal(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(np.array_equal(one, two) for one, two in zip(some, others))


@on_ranks(2)
def test_graphs_with_changing_numbers_of_ranks_look_them_up() -> None:
    weight = tf.Variable([[1.0], [2.0]])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(weight, [hvd.rank()]))
        return hvd.DistributedGradientTape(tape).gradient(loss, [weight])

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_ELASTIC", "1")
        graph = step.get_concrete_function().graph
        assert "HorovodSize" in {operation.type for operation in graph.get_operations()}
        assert tf.convert_to_tensor(step()[0]).numpy().tolist() == [[0.5], [0.5]]
