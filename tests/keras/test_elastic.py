"""Elastic training: the state, the callbacks, and the function that runs it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import keras
import numpy
import pytest
from trainings import BACKEND, data, network, same_on_all_ranks, same_weights

import horovod.keras as hvd
from ronde.exceptions import HorovodInternalError
from ronde.keras.flavours import own_variables, to_numpy
from together import on_ranks


def used(seed: int, epochs: int = 1) -> Any:
    model = network(seed)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    if epochs:
        model.fit(*data(), epochs=epochs, verbose=0)
    return model


@on_ranks(2)
def test_a_state_comes_back_to_what_was_saved() -> None:
    model = used(3)
    state = hvd.elastic.KerasState(model, epoch=1, batch=0)
    weights = [weight.copy() for weight in model.get_weights()]
    values = [to_numpy(variable).copy() for variable in own_variables(model.optimizer)]
    model.fit(*data(), epochs=1, verbose=0)
    state.epoch = 9
    state.restore()
    assert (state.epoch, state.batch) == (1, 0)
    for found, expected in zip(model.get_weights(), weights):
        numpy.testing.assert_array_equal(found, expected)
    for variable, expected in zip(own_variables(model.optimizer), values):
        numpy.testing.assert_array_equal(to_numpy(variable), expected)
    state.epoch = 2
    state.commit()
    state.epoch = 5
    state.restore()
    assert state.epoch == 2


@on_ranks(2)
def test_a_new_rank_takes_over_the_state_of_rank_0() -> None:
    # Rank 1 has just come: its optimizer has not made a step and has no slots.
    model = network(hvd.rank())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    if hvd.rank() == 0:
        lonely = network(0)
        lonely.compile(keras.optimizers.Adam(0.01), loss="mse")
        lonely.fit(*data(), epochs=1, verbose=0)
        model.compile(hvd.DistributedOptimizer(lonely.optimizer), loss="mse")
        model.set_weights(lonely.get_weights())
    state = hvd.elastic.KerasState(model, epoch=3 * (1 - hvd.rank()))
    state.sync()
    assert state.epoch == 3
    same_on_all_ranks(model)
    flat = numpy.concatenate([to_numpy(variable).ravel() for variable in own_variables(model.optimizer)])
    both = hvd.allgather(flat[None])
    numpy.testing.assert_array_equal(both[0], both[1])
    state.restore()
    same_on_all_ranks(model)


@on_ranks(2)
def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="build"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))


class Counting:
    """Stands for a state, and counts what happens to it."""

    epoch = batch = commits = 0

    def commit(self) -> None:
        self.commits += 1


@on_ranks(2)
def test_callbacks_keep_the_state_up_to_date() -> None:
    state: Any = Counting()
    seen: list[tuple[int, int]] = []

    class Watching(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            seen.append((state.epoch, state.batch))

    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
        Watching(),
    ]
    model = used(3, 0)
    inputs, targets = data()
    model.fit(inputs, targets, batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert (state.epoch, state.batch) == (2, 0)
    # After every second batch, and after each epoch.
    assert state.commits == 3 + 2
    # After a reset in the third epoch, whose first batch had been done.
    state.batch = 1
    model.fit(inputs[:32], targets[:32], batch_size=16, epochs=1, verbose=0, callbacks=callbacks)
    assert seen[6:] == [(2, 1), (2, 2)]
    assert (state.epoch, state.batch) == (3, 0)


@on_ranks(2)
def test_training_runs_again_after_a_failure() -> None:
    state = hvd.elastic.KerasState(used(3, 0), epoch=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    expected = [weight.copy() for weight in state.model.get_weights()]

    def train(state: Any) -> int:
        if not resets:
            state.epoch = 7
            state.model.set_weights([weight + 1 for weight in state.model.get_weights()])
            raise HorovodInternalError("as if a rank had been lost")
        return state.epoch

    # Leaving and joining needs a launcher that starts ranks anew; here the job stays as it is.
    with mock.patch(f"ronde.{BACKEND}.elastic._join_anew"):
        assert hvd.elastic.run(train)(state) == 0
    assert resets == [hvd.size()]
    for found, weight in zip(state.model.get_weights(), expected):
        numpy.testing.assert_array_equal(found, weight)


@on_ranks(2)
def test_errors_of_the_script_are_its_own() -> None:
    @hvd.elastic.run
    def train(state: Any) -> None:
        raise ValueError(f"epoch {state.epoch} went wrong")

    with pytest.raises(ValueError, match="epoch 4 went wrong"):
        train(hvd.elastic.KerasState(used(3, 0), epoch=4))
    same_weights(network(), network(), 0.0)
