"""Loss scaling around a distributed optimizer and inside one: all ranks skip the same steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy
import pytest
from trainings import BACKEND, data, mine, network, same_on_all_ranks

import horovod.keras as hvd
from ronde.keras import DistributedOptimizer
from ronde.keras.compiling import holds_distributed
from ronde.keras.flavours import to_numpy
from together import on_ranks

LossScale = (
    keras.optimizers.LossScaleOptimizer
    if hasattr(keras.optimizers, "LossScaleOptimizer")
    else keras.mixed_precision.LossScaleOptimizer
)


@contextlib.contextmanager
def mixed() -> Iterator[None]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy("float32")


def scale_of(optimizer: Any) -> float:
    found = optimizer.dynamic_scale if hasattr(optimizer, "dynamic_scale") else optimizer.loss_scale
    return float(to_numpy(found))


def train(optimizer: Any) -> Any:
    """Train with an infinity on rank 0 in the first batch only, and look at what becomes of the model."""
    with mixed():
        model = network()
        model.compile(optimizer, loss="mse")
        assert isinstance(model.optimizer, LossScale)
        assert holds_distributed(model.optimizer)
        inputs, targets = map(mine, data())
        targets = targets.copy()
        if hvd.rank() == 0:
            targets[0] = numpy.inf
        start = [weight.copy() for weight in model.get_weights()]
        model.fit(inputs, targets, batch_size=len(inputs), epochs=1, verbose=0, shuffle=False)
        for found, expected in zip(model.get_weights(), start):
            numpy.testing.assert_array_equal(found, expected, err_msg="a step with an infinity was taken")
        first = scale_of(model.optimizer)
        targets[0] = 0.0
        model.fit(inputs, targets, batch_size=len(inputs), epochs=2, verbose=0, shuffle=False)
        assert any((new != old).any() for new, old in zip(model.get_weights(), start))
        same_on_all_ranks(model)
        scales = hvd.allgather([first, scale_of(model.optimizer)]).reshape(2, 2)
        numpy.testing.assert_array_equal(scales[0], scales[1])
        # 2 to the 15th, and halved because of the infinity.
        assert scales[0][0] == 2.0**14
    return model


@on_ranks(2)
def test_compile_puts_loss_scaling_around_a_distributed_optimizer() -> None:
    train(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, clipnorm=1.0)))


@on_ranks(2)
def test_a_users_loss_scaling_around_a_distributed_optimizer() -> None:
    inner = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model = train(LossScale(inner))
    # Variables can still be registered where the user got hold of the optimizer.
    inner.register_local_var(model.trainable_variables[0])


@on_ranks(2)
def test_a_distributed_optimizer_around_loss_scaling() -> None:
    optimizer = hvd.DistributedOptimizer(LossScale(keras.optimizers.SGD(0.1)))
    train(optimizer)
    optimizer.register_local_var(network().trainable_variables[0])


@on_ranks(2)
def test_loss_scaling_and_several_passes_for_a_step() -> None:
    with mixed():
        model = network()
        model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2), loss="mse")
        inputs, targets = map(mine, data())
        if BACKEND == "jax":
            with pytest.raises(NotImplementedError, match="gradient_accumulation_steps"):
                model.train_on_batch(inputs, targets)
            return
        for step in (1, 2, 3, 4):
            before = [weight.copy() for weight in model.get_weights()]
            model.train_on_batch(inputs, targets)
            changed = any((new != old).any() for new, old in zip(model.get_weights(), before))
            assert changed == (step % 2 == 0), f"after pass {step}"
        same_on_all_ranks(model)
