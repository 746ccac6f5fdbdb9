"""Bringing all ranks to the same state: variables of every kind, and objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
import ronde
from horovod.common.exceptions import HorovodInternalError
from together import on_ranks

v1 = tf.compat.v1

TYPES = [tf.uint8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool]


@on_ranks(2, 3)
def test_variables_take_the_values_of_any_root() -> None:
    for root in range(hvd.size()):
        variables = [tf.Variable(tf.cast(tf.fill([2, place], hvd.rank()), dtype)) for place, dtype in enumerate(TYPES)]
        assert hvd.broadcast_variables(variables, root_rank=root) is None
        for variable in variables:
            assert bool(tf.reduce_all(tf.equal(variable, tf.cast(tf.fill(variable.shape, root), variable.dtype))))
        again = [tf.Variable([float(hvd.rank())]), tf.Variable(hvd.rank())]
        values = hvd.broadcast_(again, root_rank=root, name="in_place")
        assert [float(values[0][0]), int(values[1])] == [root, root]
        assert [float(again[0][0]), int(again[1])] == [root, root]


@on_ranks(2)
def test_variables_in_functions() -> None:
    variable = tf.Variable([hvd.rank() + 1.0])

    @tf.function
    def function() -> Any:
        (value,) = hvd.broadcast_([variable], root_rank=1)
        return value * 2.0

    assert function().numpy().tolist() == [4.0]
    assert variable.numpy().tolist() == [2.0]


@on_ranks(2)
def test_variables_of_keras_layers() -> None:
    layer = tf.keras.layers.Dense(3, kernel_initializer=tf.keras.initializers.Constant(hvd.rank() + 1.0))
    layer.build([None, 2])
    hvd.broadcast_variables(layer.variables, root_rank=1)
    np.testing.assert_allclose(np.asarray(layer.get_weights()[0]), np.full([2, 3], 2.0))
    np.testing.assert_allclose(hvd.allreduce(layer.variables[0], op=hvd.Sum).numpy(), np.full([2, 3], 4.0))


@on_ranks(2)
def test_variables_of_sessions() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        resource = v1.get_variable("resource", initializer=tf.constant([hvd.rank() + 1.0]), use_resource=True)
        reference = v1.get_variable("reference", initializer=tf.constant([hvd.rank() + 5.0]), use_resource=False)
        everything = hvd.broadcast_global_variables(1)
        in_place = hvd.broadcast_([resource, reference], root_rank=0)
        session.run(v1.global_variables_initializer())
        before = session.run([resource, reference])
        session.run(everything)
        assert [item.tolist() for item in session.run([resource, reference])] == [[2.0], [6.0]]
        session.run([resource.assign([before[0][0]]), reference.assign([before[1][0]])])
        assert [item.tolist() for item in session.run(in_place)] == [[1.0], [5.0]]


@on_ranks(3)
def test_variables_of_a_process_set() -> None:
    pair = hvd.add_process_set([1, 2])
    variable = tf.Variable(hvd.rank())
    if pair.included():
        hvd.broadcast_variables([variable], root_rank=2, process_set=pair)
    assert int(variable) == [0, 2, 2][hvd.rank()]
    ronde.barrier()
    hvd.remove_process_set(pair)


@on_ranks(2, 3)
def test_objects() -> None:
    rank, size = hvd.rank(), hvd.size()
    mine = {"rank": rank, "text": "x" * (1000 * rank), "function": lambda: rank}
    for root in range(size):
        found = hvd.broadcast_object(mine, root_rank=root)
        assert found["rank"] == found["function"]() == root
        assert len(found["text"]) == 1000 * root
    function = hvd.broadcast_object_fn(root_rank=1, name="named")
    assert [function(rank), function((rank, None))] == [1, (1, None)]
    assert hvd.allgather_object([None] * rank, name="lists") == [[None] * other for other in range(size)]
    with tf.Graph().as_default(), v1.Session() as session:
        assert hvd.broadcast_object(rank, session=session) == 0
        assert hvd.allgather_object(rank, session=session) == list(range(size))


@on_ranks(3)
def test_objects_of_a_process_set() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        assert hvd.broadcast_object(hvd.rank(), root_rank=2, process_set=pair) == 2
        assert hvd.allgather_object(hvd.rank(), process_set=pair) == [0, 2]
    ronde.barrier()
    hvd.remove_process_set(pair)


@on_ranks(2)
def test_objects_that_cannot_be_pickled_fail_on_every_rank() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise TypeError("not this one")

    with pytest.raises(TypeError if hvd.rank() == 0 else HorovodInternalError, match="not this one"):
        hvd.broadcast_object(Stubborn(), root_rank=0)
    # The name is free again when the other rank has heard of it.
    ronde.barrier()
    assert hvd.broadcast_object(5) == 5
