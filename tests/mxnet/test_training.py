"""Training on several ranks gives what training in one process on the whole batch gives."""

from __future__ import annotations

import pickle
import tempfile
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from sklearn.datasets import load_digits

import horovod.mxnet as hvd
from models import (
    assert_same,
    assert_same_on_all_ranks,
    backward,
    batches,
    network,
    own_part,
    train_alone,
    train_together,
)
from together import on_ranks

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("adam", {"learning_rate": 0.01}),
]


@on_ranks(2, 3)
def test_a_trainer_with_every_way_to_send_gradients() -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"gradient_predivide_factor": 2.5},
        {"num_groups": 1},
        {"num_groups": 2},
        {"num_groups": 100},
        {"num_groups": 2, "gradient_predivide_factor": 0.5, "prefix": "mine."},
    ]
    for name, options in OPTIMIZERS:
        alone = train_alone(lambda net: mx.gluon.Trainer(net.collect_params(), name, dict(options)))  # noqa: B023
        for way in ways:
            together = train_together(
                lambda net: hvd.DistributedTrainer(net.collect_params(), name, dict(options), **way)  # noqa: B023
            )
            assert_same(together, alone)
            assert_same_on_all_ranks(together)


@on_ranks(2)
def test_gradients_may_travel_as_float16() -> None:
    options = {"learning_rate": 0.1}
    alone = train_alone(lambda net: mx.gluon.Trainer(net.collect_params(), "sgd", dict(options)))
    for groups in (0, 2):
        together = train_together(
            lambda net: hvd.DistributedTrainer(
                net.collect_params(),
                "sgd",
                dict(options),
                compression=hvd.Compression.fp16,
                num_groups=groups,  # noqa: B023
            )
        )
        assert_same(together, alone, tolerance=1e-3)
        assert_same_on_all_ranks(together)
        with pytest.raises(AssertionError):
            assert_same(together, alone)


@on_ranks(3)
def test_a_trainer_of_some_ranks() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        net = network()
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, process_set=pair)
        twin = network("twin_")
        alone = mx.gluon.Trainer(twin.collect_params(), "sgd", {"learning_rate": 0.1})
        for inputs, targets in batches():
            halves = slice(6 * pair.rank(), 6 * pair.rank() + 6)
            trainer.step(backward(net, inputs[halves], targets[halves]))
            alone.step(backward(twin, inputs, targets))
        for ours, theirs in zip(net.collect_params().values(), twin.collect_params().values()):
            np.testing.assert_allclose(ours.data().asnumpy(), theirs.data().asnumpy(), rtol=1e-7)
    hvd.remove_process_set(pair)


def clip(gradients: list[Any]) -> None:
    """Make gradients smaller where their norm is above 0.5."""
    norm = np.sqrt(sum(float(gradient.square().sum().asscalar()) for gradient in gradients))
    for gradient in gradients:
        gradient *= min(1.0, 0.5 / norm)


@on_ranks(2)
def test_gradients_can_be_clipped_between_averaging_and_the_update() -> None:
    net, twin = network(), network("twin_")
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    alone = mx.gluon.Trainer(twin.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=False)
    for inputs, targets in batches():
        rows = backward(net, own_part(inputs), own_part(targets))
        trainer.allreduce_grads()
        clip([each.grad() for each in net.collect_params().values()])
        trainer.update(rows)
        # The average over ranks of the sums of their losses is the sum over all, divided by their number.
        whole = backward(twin, inputs, targets)
        gradients = [each.grad() for each in twin.collect_params().values()]
        for gradient in gradients:
            gradient[:] /= hvd.size()
        clip(gradients)
        alone.update(whole // hvd.size())
    for ours, theirs in zip(net.collect_params().values(), twin.collect_params().values()):
        np.testing.assert_allclose(ours.data().asnumpy(), theirs.data().asnumpy(), rtol=1e-7)


@on_ranks(2)
def test_parameters_in_a_list_frozen_ones_and_those_without_a_gradient() -> None:
    net = network()
    net[0].collect_params().setattr("grad_req", "null")
    trainer = hvd.DistributedTrainer(list(net.collect_params().values()), "sgd", {"learning_rate": 0.1})
    before = net[0].weight.data().asnumpy()
    inputs, targets = batches()[0]
    trainer.step(backward(net, own_part(inputs), own_part(targets)))
    assert (net[0].weight.data().asnumpy() == before).all()
    assert_same_on_all_ranks(net)
    # Only rank 0 uses the network in this step; the other has gradients from before, which count as well.
    if hvd.rank() == 0:
        backward(net, inputs, targets)
    trainer.step(1, ignore_stale_grad=True)


@on_ranks(2)
def test_two_trainers_at_the_same_time() -> None:
    alone = train_alone(lambda net: mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}))
    for prefixes in ((None, None), ("one.", "other.")):
        nets = [network(), network("other_")]
        trainers = [
            hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, prefix=prefix)
            for net, prefix in zip(nets, prefixes)
        ]
        pairs = list(zip(nets, trainers))
        if prefixes[0] is not None and hvd.rank() == 1:
            # With different names the ranks may take them in different orders.
            pairs.reverse()
        for inputs, targets in batches():
            for net, _ in pairs:
                backward(net, own_part(inputs), own_part(targets))
            for _, trainer in pairs:
                trainer.step(len(own_part(targets)))
        assert_same(nets[0], alone)
        assert_same_on_all_ranks(nets[1])


@on_ranks(2)
def test_a_trainer_unwraps_a_distributed_optimizer_and_keeps_its_state_in_a_file() -> None:
    net = network()
    inner = mx.optimizer.create("adam", learning_rate=0.01)
    wrapped = hvd.DistributedOptimizer(inner)
    with pytest.warns(UserWarning, match="unwrapped"):
        trainer = hvd.DistributedTrainer(net.collect_params(), wrapped)
    assert trainer.optimizer is inner
    inputs, targets = batches()[0]
    trainer.step(backward(net, own_part(inputs), own_part(targets)))
    with tempfile.NamedTemporaryFile() as file:
        trainer.save_states(file.name)
        another = hvd.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.5})
        another.load_states(file.name)
    assert another.learning_rate == 0.01
    another.set_learning_rate(0.02)
    another.step(backward(net, own_part(inputs), own_part(targets)))
    assert another.optimizer.num_update == 2
    assert_same_on_all_ranks(net)


@on_ranks(2, 3)
def test_an_optimizer_behind_an_updater() -> None:
    for groups, aggregate in ((0, 0), (0, 4), (2, 4)):
        for name, options in OPTIMIZERS:
            weights = np.arange(12.0).reshape(4, 3)
            rows = np.random.default_rng(5).normal(size=(hvd.size(), 4, 3))

            def run(optimizer: Any, gradients: Any, start: Any = weights) -> Any:
                updater = mx.optimizer.get_updater(optimizer)
                arrays = [mx.nd.array(row, dtype="float64") for row in start]
                for _ in range(3):
                    given = [mx.nd.array(row, dtype="float64") for row in gradients]
                    if optimizer.aggregate_num > 0:
                        updater(list(range(len(arrays))), given, arrays)
                    else:
                        for index, (gradient, weight) in enumerate(zip(given, arrays)):
                            updater(index, gradient, weight)
                return np.stack([weight.asnumpy() for weight in arrays])

            inner = mx.optimizer.create(name, rescale_grad=0.5, **options)
            inner.aggregate_num = aggregate if name == "sgd" else 0
            for factor in (1.0, 2.0):
                optimizer = hvd.DistributedOptimizer(
                    pickle.loads(pickle.dumps(inner)), gradient_predivide_factor=factor, num_groups=groups
                )
                plain = mx.optimizer.create(name, rescale_grad=0.5, **options)
                plain.aggregate_num = 0
                np.testing.assert_allclose(run(optimizer, rows[hvd.rank()]), run(plain, rows.mean(0)), rtol=1e-6)


@on_ranks(2)
def test_an_optimizer_is_the_one_inside() -> None:
    inner = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(inner, gradient_predivide_factor=2.0, num_groups=3)
    assert isinstance(optimizer, mx.optimizer.Optimizer)
    assert (optimizer.momentum, optimizer.lr) == (0.9, 0.1)
    optimizer.set_learning_rate(0.5)
    optimizer.rescale_grad = 0.25
    optimizer.set_lr_mult({0: 2.0})
    optimizer.set_wd_mult({0: 3.0})
    assert (inner.learning_rate, inner.rescale_grad) == (0.5, 0.25)
    assert optimizer.learning_rate == 0.5
    assert (inner.lr_mult[0], inner.wd_mult[0]) == (2.0, 3.0)
    assert "rescale_grad" not in vars(optimizer)
    with pytest.raises(AttributeError):
        optimizer.nothing_of_this_name  # noqa: B018
    again = pickle.loads(pickle.dumps(optimizer))
    assert type(again) is hvd.DistributedOptimizer
    assert (again.momentum, again.learning_rate) == (0.9, 0.5)
    assert again._averaging == optimizer._averaging


@on_ranks(2)
def test_digits_are_learned() -> None:
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (pixels[order].reshape(-1, 1, 8, 8) / 16.0).astype("float32")
    digits = labels[order].astype("float32")
    mx.random.seed(hvd.rank())
    net = mx.gluon.nn.HybridSequential(prefix="digits_")
    with net.name_scope():
        net.add(
            mx.gluon.nn.Conv2D(16, 3, activation="relu"),
            mx.gluon.nn.MaxPool2D(2),
            mx.gluon.nn.Dense(64, activation="relu"),
            mx.gluon.nn.Dense(10),
        )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    hvd.broadcast_parameters(net.collect_params())
    trainer = hvd.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.003})
    mine = slice(360 + hvd.rank(), None, hvd.size())
    data = mx.gluon.data.ArrayDataset(images[mine], digits[mine])
    loader = mx.gluon.data.DataLoader(data, batch_size=32, shuffle=True, last_batch="discard")
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(10):
        for inputs, targets in loader:
            with mx.autograd.record():
                loss = loss_of(net(inputs), targets)
            loss.backward()
            trainer.step(inputs.shape[0])
    right = (net(mx.nd.array(images[:360])).argmax(axis=1).asnumpy() == digits[:360]).mean()
    assert right > 0.95
    assert_same_on_all_ranks(net)
