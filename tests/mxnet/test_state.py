"""Every rank gets the same parameters and objects."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

import horovod.mxnet as hvd
from together import on_ranks


def on_all_ranks(array: mx.nd.NDArray) -> Any:
    """Return what each rank holds, one after the other."""
    return hvd.allgather(array.expand_dims(0)).asnumpy()


@on_ranks(2, 3)
def test_parameters_are_those_of_the_root() -> None:
    for root in range(hvd.size()):
        mx.random.seed(hvd.rank() + 1)
        net = mx.gluon.nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.BatchNorm(in_channels=4))
        net.initialize(mx.init.Uniform(), force_reinit=True)
        net[1].running_mean.set_data(mx.nd.full(4, hvd.rank()))
        before = on_all_ranks(net[0].weight.data())
        hvd.broadcast_parameters(net.collect_params(), root_rank=root)
        assert (on_all_ranks(net[0].weight.data()) == before[root]).all()
        assert (on_all_ranks(net[1].running_mean.data()) == root).all()
        assert not (before[0] == before[1]).all()


@on_ranks(2)
def test_arrays_and_parameters_in_a_dict_in_any_order() -> None:
    weight = mx.gluon.Parameter("weight", shape=(2,))
    weight.initialize(mx.init.Constant(hvd.rank() + 5))
    values = {"a": mx.nd.full(3, hvd.rank()), "b": weight, "c": mx.nd.full(1, hvd.rank(), dtype="int64")}
    if hvd.rank() == 1:
        values = dict(reversed(values.items()))
    hvd.broadcast_parameters(values, root_rank=1, prefix="these.")
    assert (values["a"].asnumpy() == 1).all()
    assert (weight.data().asnumpy() == 6).all()
    assert (values["c"].asnumpy() == 1).all()


@on_ranks(2, 3)
def test_parameters_whose_shape_is_not_known_yet_follow_in_the_first_forward_pass() -> None:
    mx.random.seed(hvd.rank() + 1)
    net = mx.gluon.nn.HybridSequential(prefix="deferred_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.Dense(5), mx.gluon.nn.Dense(2))
    net.initialize(mx.init.Uniform())
    hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    with pytest.raises(mx.gluon.parameter.DeferredInitializationError):
        net[1].weight.data()
    with mx.autograd.record():
        net(mx.nd.ones((2, 3)))
    for layer in net:
        everybody = on_all_ranks(layer.weight.data())
        assert (everybody == everybody[1]).all()
    # Only once: later values are this rank's own business.
    net[1].weight.set_data(mx.nd.full(net[1].weight.shape, hvd.rank()))
    net.collect_params().reset_ctx(mx.cpu(0))
    assert (net[1].weight.data().asnumpy() == hvd.rank()).all()


@on_ranks(2)
def test_a_parameter_that_only_one_rank_knows_the_shape_of() -> None:
    net = mx.gluon.nn.Dense(2, in_units=3 if hvd.rank() == 0 else 0, prefix="half_known_")
    net.initialize(mx.init.Constant(hvd.rank() + 1.0))
    hvd.broadcast_parameters(net.collect_params())
    net(mx.nd.ones((1, 3)))
    assert (net.weight.data().asnumpy() == 1.0).all()


@on_ranks(2)
def test_parameters_in_several_contexts() -> None:
    weight = mx.gluon.Parameter("weight", shape=(2,))
    weight.initialize(mx.init.Constant(hvd.rank() + 5), ctx=[mx.cpu(0), mx.cpu(1)])
    late = mx.gluon.Parameter("late", shape=(0,), allow_deferred_init=True)
    late.initialize(mx.init.Constant(hvd.rank() + 7), ctx=[mx.cpu(0), mx.cpu(1)])
    hvd.broadcast_parameters({"weight": weight, "late": late})
    late.shape = (3,)
    late._finish_deferred_init()
    for parameter, value in ((weight, 5), (late, 7)):
        for copy in parameter.list_data():
            assert (copy.asnumpy() == value).all()


@on_ranks(2, 3)
def test_objects() -> None:
    mine = {"rank": hvd.rank(), "array": np.arange(hvd.rank() + 1), "text": "x" * 1000 * hvd.rank()}
    for root in range(hvd.size()):
        found = hvd.broadcast_object(mine, root_rank=root)
        assert found["rank"] == root
        assert found["array"].tolist() == list(range(root + 1))
    everybody = hvd.allgather_object(mine, name="everybody")
    assert [each["rank"] for each in everybody] == list(range(hvd.size()))
    assert [len(each["text"]) for each in everybody] == [1000 * rank for rank in range(hvd.size())]
    assert hvd.broadcast_object((lambda value: value + 1) if hvd.rank() == 0 else None)(1) == 2


@on_ranks(2)
def test_what_cannot_be_pickled_fails_on_all_ranks() -> None:
    import _thread

    locked = {"lock": _thread.allocate_lock()}
    if hvd.rank() == 0:
        with pytest.raises(TypeError, match="pickle"):
            hvd.broadcast_object(locked, name="locked")
        with pytest.raises(TypeError, match="pickle"):
            hvd.allgather_object(locked, name="locked")
    else:
        with pytest.raises(mx.MXNetError, match="pickle"):
            hvd.broadcast_object(None, name="locked")
        with pytest.raises(mx.MXNetError, match="pickle"):
            hvd.allgather_object(None, name="locked")
