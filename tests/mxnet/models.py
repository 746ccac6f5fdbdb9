"""Small trainings whose result with several ranks must be that of one process with the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np

import horovod.mxnet as hvd

STEPS = 5
ROWS = 12


def network(prefix: str = "net_") -> Any:
    """Return the same small network on every rank."""
    mx.random.seed(7)
    net = mx.gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        for units, inputs, activation in ((8, 6, "tanh"), (8, 8, "tanh"), (3, 8, None)):
            net.add(mx.gluon.nn.Dense(units, in_units=inputs, activation=activation, dtype="float64"))
    net.initialize(mx.init.Uniform(0.5))
    return net


def batches() -> list[tuple[Any, Any]]:
    """Return the whole batches, the same ones on every rank."""
    generator = np.random.default_rng(11)
    return [(generator.normal(size=(ROWS, 6)), generator.integers(0, 3, ROWS)) for _ in range(STEPS)]


def own_part(batch: Any) -> Any:
    """Return this rank's share of a batch."""
    return np.array_split(batch, hvd.size())[hvd.rank()]


def backward(net: Any, inputs: Any, targets: Any) -> int:
    """Compute gradients of the sum of the losses, and return over how many rows."""
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    with mx.autograd.record():
        loss = loss_of(net(mx.nd.array(inputs, dtype="float64")), mx.nd.array(targets))
    loss.backward()
    return len(targets)


def train_alone(make: Callable[[Any], Any]) -> Any:
    """Train with plain Gluon on whole batches; ``make`` gives the trainer of a network."""
    net = network()
    trainer = make(net)
    for inputs, targets in batches():
        trainer.step(backward(net, inputs, targets))
    return net


def train_together(make: Callable[[Any], Any]) -> Any:
    """Train with all ranks, each on its part of the batches."""
    net = network()
    trainer = make(net)
    for inputs, targets in batches():
        trainer.step(backward(net, own_part(inputs), own_part(targets)))
    return net


def assert_same(net: Any, other: Any, tolerance: float = 1e-7) -> None:
    """Fail unless two networks have the same parameters."""
    ours, theirs = net.collect_params(), other.collect_params()
    assert ours.keys() == theirs.keys() != set()
    for name, parameter in ours.items():
        np.testing.assert_allclose(
            parameter.data().asnumpy(), theirs[name].data().asnumpy(), rtol=tolerance, atol=tolerance, err_msg=name
        )


def assert_same_on_all_ranks(net: Any) -> None:
    """Fail unless all ranks have the same bits."""
    for name, parameter in net.collect_params().items():
        everybody = hvd.allgather(parameter.data().expand_dims(0)).asnumpy()
        assert (everybody == everybody[0]).all(), name
