"""Collectives in functions and in graphs of ``tf.compat.v1``: names, order, shapes, and that nothing waits for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from together import on_ranks


def operations(function: Any, *arguments: Any) -> list[Any]:
    """Return the collectives in the graph of a function."""
    found = function.get_concrete_function(*arguments).graph.get_operations()
    return [operation for operation in found if operation.type.startswith("Horovod")]


def keys(function: Any, *arguments: Any) -> list[str]:
    return [operation.get_attr("tensor_name").decode() for operation in operations(function, *arguments)]


@on_ranks(2)
def test_names_follow_the_tensors_and_are_unique() -> None:
    @tf.function
    def function(value: Any) -> Any:
        doubled = tf.multiply(value, 2.0, name="doubled")
        with tf.name_scope("outer"):
            return [
                hvd.allreduce(doubled),
                hvd.allreduce(doubled),
                hvd.allreduce(doubled, name="mine"),
                hvd.allreduce(doubled, name="mine", ignore_name_scope=True),
                hvd.allgather(doubled),
                hvd.broadcast(doubled, 0, ignore_name_scope=True),
                hvd.alltoall(doubled),
                hvd.reducescatter(doubled),
                *hvd.grouped_allreduce([doubled, value]),
            ]

    given = tf.TensorSpec([2], tf.float32)
    assert keys(function, given) == [
        "outer/HorovodAllreduce_doubled_0",
        "outer/HorovodAllreduce_doubled_0_1",
        "outer/mine",
        "mine_1",
        "outer/HorovodAllgather_doubled_0",
        "HorovodBroadcast_doubled_0",
        "outer/HorovodAlltoall_doubled_0",
        "outer/HorovodReducescatter_doubled_0",
        "outer/HorovodGroupedAllreduce_doubled_0_value_0",
    ]
    assert [operation.name for operation in operations(function, given)][:3] == keys(function, given)[:3]
    results = function(tf.ones([2]))
    assert [float(result[0]) for result in results] == [2.0] * 9 + [1.0]


@on_ranks(2)
def test_variables_give_their_name() -> None:
    variable = tf.Variable([1.0], name="weight")

    @tf.function
    def function() -> Any:
        return hvd.allreduce(variable)

    assert keys(function) == ["HorovodAllreduce_weight_0"]


@on_ranks(2, 3)
def test_collectives_do_not_wait_for_each_other() -> None:
    """One after the other in the order of the graph, these would never end: the ranks differ in that order."""

    @tf.function
    def function() -> Any:
        order = list(range(50)) if hvd.rank() % 2 else list(reversed(range(50)))
        return {place: hvd.allreduce(tf.fill([3], float(place)), op=hvd.Sum, name=f"place_{place}") for place in order}

    for _ in range(3):
        for place, found in function().items():
            assert found.numpy().tolist() == [place * hvd.size()] * 3


@on_ranks(2)
def test_unused_collectives_run_all_the_same() -> None:
    @tf.function
    def function() -> Any:
        hvd.allreduce(tf.ones([1]), name="unused")
        return tf.constant(1)

    # Were it pruned here, rank 1 would wait for rank 0.
    if hvd.rank() == 0:
        function()
    else:
        hvd.allreduce(tf.ones([1]), name="unused")


@on_ranks(2)
def test_functions_in_functions_called_more_than_once() -> None:
    @tf.function
    def inner(value: Any) -> Any:
        return hvd.allreduce(value, op=hvd.Sum)

    @tf.function
    def other(value: Any) -> Any:
        return hvd.allreduce(value, op=hvd.Sum)

    @tf.function
    def outer(value: Any) -> Any:
        return inner(value) + inner(value * 2.0) + other(value * 3.0) + inner(inner(value))

    for _ in range(3):
        assert outer(tf.ones([2])).numpy().tolist() == [2.0 + 4.0 + 6.0 + 4.0] * 2


@on_ranks(2)
def test_conditions_and_loops() -> None:
    @tf.function
    def function(value: Any, steps: Any) -> Any:
        total = tf.zeros_like(value)
        for step in tf.range(steps):
            if step % 2 == 0:
                total += hvd.allreduce(value * tf.cast(step, tf.float32), op=hvd.Sum)
            else:
                total += hvd.allreduce(value, op=hvd.Average)
        return total

    assert function(tf.ones([2]), tf.constant(6)).numpy().tolist() == [2.0 * (0 + 2 + 4) + 3.0] * 2


@on_ranks(2)
def test_iterations_do_not_meet_each_other() -> None:
    """The steps of a loop share a name, and would not need to wait for each other but for that."""

    @tf.function
    def loop() -> Any:
        def step(place: Any, found: Any) -> Any:
            return place + 1, found.write(place, hvd.allreduce(tf.fill([3], tf.cast(place, tf.float32)), op=hvd.Sum))

        found = tf.TensorArray(tf.float32, 20)
        return tf.while_loop(lambda place, _: place < 20, step, [0, found], parallel_iterations=10)[1].stack()

    @tf.function
    def mapped() -> Any:
        return tf.map_fn(lambda row: hvd.allreduce(row, op=hvd.Sum), tf.reshape(tf.range(20.0), [20, 1]))

    for _ in range(3):
        assert loop()[:, 0].numpy().tolist() == [2.0 * place for place in range(20)]
        assert mapped()[:, 0].numpy().tolist() == [2.0 * place for place in range(20)]


@on_ranks(2)
def test_functions_that_are_traced_again() -> None:
    @tf.function(reduce_retracing=True)
    def function(value: Any) -> Any:
        return hvd.allreduce(value, op=hvd.Sum), hvd.allgather(value)

    for rows in (2, 3, 5):
        total, rows_of_all = function(tf.ones([rows, 2]))
        assert total.shape == (rows, 2)
        assert rows_of_all.shape == (2 * rows, 2)


@on_ranks(2)
def test_what_is_known_of_shapes() -> None:
    @tf.function
    def function(value: Any) -> Any:
        shapes["allreduce"] = hvd.allreduce(value).shape.as_list()
        shapes["broadcast"] = hvd.broadcast(value, 0).shape.as_list()
        shapes["allgather"] = hvd.allgather(value).shape.as_list()
        shapes["alltoall"] = hvd.alltoall(value).shape.as_list()
        shapes["reducescatter"] = hvd.reducescatter(value).shape.as_list()
        shapes["size"] = hvd.size_op().shape.as_list()

    shapes: dict[str, list[int | None]] = {}
    function.get_concrete_function(tf.TensorSpec([4, 3], tf.float32))
    assert shapes == {
        "allreduce": [4, 3],
        "broadcast": [4, 3],
        "allgather": [None, 3],
        "alltoall": [None, 3],
        "reducescatter": [None, 3],
        "size": [],
    }


@on_ranks(2)
def test_sessions() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        place = tf.compat.v1.placeholder(tf.float32, [None])
        total = hvd.allreduce(place, op=hvd.Sum)
        rows = hvd.allgather(place)
        size = hvd.size_op()
        for count in (1, 3):
            found = session.run([total, rows, size], {place: np.full(count, hvd.rank() + 1.0)})
            assert found[0].tolist() == [3.0] * count
            assert found[1].tolist() == [1.0] * count + [2.0] * count
            assert found[2] == 2


@on_ranks(2)
def test_join_comes_after_what_is_in_the_graph() -> None:
    @tf.function
    def function() -> Any:
        return hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="before_join"), hvd.join()

    total, last = function()
    assert float(total[0]) == 2.0
    assert int(last) in (0, 1)
    assert hvd.allgather(last[tf.newaxis]).numpy().tolist() == [int(last)] * 2


@on_ranks(2)
def test_compiling_for_xla_is_refused() -> None:
    @tf.function(jit_compile=True)
    def function(value: Any) -> Any:
        return hvd.allreduce(value)

    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)) as raised:
        function(tf.ones([2]))
    assert "HorovodAllreduce" in str(raised.value)
    assert float(hvd.allreduce(tf.ones([]), op=hvd.Sum)) == 2.0


@on_ranks(2)
def test_what_is_computed_can_be_compiled() -> None:
    """Only what travels has to stay outside."""
    weight = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)
    def loss_of(factor: Any) -> Any:
        return tf.reduce_sum(weight * weight) * factor

    @tf.function
    def step(factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(factor)
        return hvd.DistributedGradientTape(tape).gradient(loss, [weight])

    assert step(tf.constant(hvd.rank() + 1.0))[0].numpy().tolist() == [3.0, 6.0]


@on_ranks(2)
def test_graphs_by_their_definition() -> None:
    """A graph that was written down, with the names of Horovod's operations in it, runs when it is read again."""
    with tf.Graph().as_default() as graph:
        place = tf.compat.v1.placeholder(tf.float32, [2], name="given")
        tf.identity(hvd.allreduce(place, op=hvd.Sum), name="total")
        definition = graph.as_graph_def().SerializeToString()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        read = tf.compat.v1.GraphDef()
        read.ParseFromString(definition)
        tf.import_graph_def(read, name="again")
        assert session.run("again/total:0", {"again/given:0": [1.0, 2.0]}).tolist() == [2.0, 4.0]
