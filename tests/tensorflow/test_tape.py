"""Distributed tapes: training with them is training on the whole batch, with every option, eagerly and in functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
import ronde
from models import (
    RATE,
    assert_same,
    assert_same_on_all_ranks,
    batches,
    descend,
    loss_of,
    network,
    own_part,
    train_alone,
    train_together,
)
from together import on_ranks

BOTH = (False, True)


@on_ranks(2, 3)
def test_training_is_that_of_the_whole_batch() -> None:
    alone = train_alone()
    for in_graph in BOTH:
        together = train_together(in_graph)
        assert_same(together, alone)
        assert_same_on_all_ranks(together)


@on_ranks(2)
def test_a_sum_is_an_average_with_a_larger_rate() -> None:
    for in_graph in BOTH:
        assert_same(train_together(in_graph, RATE / hvd.size(), op=hvd.Sum), train_alone())


@on_ranks(2, 3)
def test_groups_of_every_kind() -> None:
    alone = train_alone()
    for in_graph in BOTH:
        by_hand = [
            lambda weights: [[weights[1], weights[3]], [weights[2], weights[0]]],
            lambda weights: [[weights[3], weights[2]], [weights[3]], [tf.Variable(0.0)]],
        ]
        for groups in (1, 2, 9, *by_hand):
            assert_same(train_together(in_graph, groups=groups), alone)
            assert_same(train_together(in_graph, groups=groups, sparse_as_dense=True), alone)
        with pytest.warns(DeprecationWarning, match="num_groups"):
            assert_same(train_together(in_graph, num_groups=2), alone)


@on_ranks(2, 3)
def test_dividing_before_the_sum() -> None:
    for in_graph in BOTH:
        together = train_together(in_graph, gradient_predivide_factor=4.0)
        assert_same(together, train_alone())
        assert_same(train_together(in_graph, gradient_predivide_factor=0.5, groups=2), together)


@on_ranks(2)
def test_compression_loses_little() -> None:
    for in_graph in BOTH:
        for compression, tolerance in ((hvd.Compression.fp16, 2e-2), (hvd.Compression.bf16, 1e-1)):
            together = train_together(in_graph, compression=compression)
            assert_same(together, train_alone(), tolerance)
            assert_same_on_all_ranks(together)


@on_ranks(2)
def test_slices_stay_slices_unless_asked() -> None:
    weights = network()
    words, classes = (tf.constant(own_part(item)) for item in batches(1)[0])
    for sparse_as_dense in (False, True):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, words, classes)
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense)
        gradients = tape.gradient(loss, weights)
        assert isinstance(gradients[0], tf.IndexedSlices) != sparse_as_dense
        assert all(tf.is_tensor(gradient) for gradient in gradients[1:])


@on_ranks(2)
def test_gradients_that_are_not_there_stay_away() -> None:
    used, unused = tf.Variable(2.0), tf.Variable(3.0)
    for in_graph in BOTH:

        def compute() -> Any:
            with tf.GradientTape() as tape:
                loss = used * used * float(hvd.rank() + 1)
            return [hvd.DistributedGradientTape(tape).gradient(loss, [unused, used, unused])]

        (found,) = (tf.function(compute) if in_graph else compute)()
        assert found[0] is None
        assert found[2] is None
        assert float(found[1]) == 6.0


@on_ranks(2)
def test_sources_in_any_structure() -> None:
    one, two = tf.Variable(1.0), tf.Variable(2.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = one * two * float(hvd.rank() + 1)
    tape = hvd.DistributedGradientTape(tape)
    assert isinstance(tape, tf.GradientTape)
    assert float(tape.gradient(loss, one)) == 3.0
    assert [float(item) for item in tape.gradient(loss, [two, one])] == [1.5, 3.0]
    assert {key: float(item) for key, item in tape.gradient(loss, {"a": one, "b": two}).items()} == {"a": 3.0, "b": 1.5}
    assert float(tape.gradient(loss, one, output_gradients=tf.constant(2.0))) == 6.0
    zero = tape.gradient(loss, tf.Variable(1.0), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert float(zero) == 0.0


@on_ranks(2)
def test_a_tape_that_records_itself() -> None:
    weight = tf.Variable(3.0)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = weight * weight * float(hvd.rank())
    assert float(tape.gradient(loss, weight)) == 3.0


@on_ranks(2)
def test_several_tapes_in_one_function() -> None:
    """As for two networks that are trained against each other."""
    first, second = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0, 5.0])

    @tf.function
    def step(factor: Any) -> Any:
        with tf.GradientTape() as one, tf.GradientTape() as two:
            losses = factor * tf.reduce_sum(first**2), factor * tf.reduce_sum(second**2)
        one, two = hvd.DistributedGradientTape(one), hvd.DistributedGradientTape(two)
        return one.gradient(losses[0], [first]), two.gradient(losses[1], [second])

    for _ in range(3):
        (of_first,), (of_second,) = step(tf.constant(float(hvd.rank() + 1)))
        assert of_first.numpy().tolist() == [3.0, 6.0]
        assert of_second.numpy().tolist() == [9.0, 12.0, 15.0]


@on_ranks(2)
def test_graphs_that_differ_in_what_does_not_travel() -> None:
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            value = weight * 1.0
            if hvd.rank() == 0:
                # Only here: what is made later has other names than on the other ranks.
                tf.debugging.assert_all_finite(value * 2.0, "finite")
            loss = tf.reduce_sum(value * value)
        return hvd.DistributedGradientTape(tape).gradient(loss, [weight], use_generic_names=True)

    assert step()[0].numpy().tolist() == [2.0, 4.0]


@on_ranks(2)
def test_local_sources_stay_on_their_rank() -> None:
    rank = hvd.rank()
    shared, own = tf.Variable([2.0]), tf.Variable([[1.0], [3.0]])
    for in_graph in BOTH:
        for scale, divisor in ((True, 2.0), (False, 1.0)):

            def compute(scale: bool = scale) -> Any:
                with tf.GradientTape() as tape:
                    loss = (rank + 1.0) * tf.reduce_sum(shared * shared + tf.gather(own, [rank]))
                tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
                tape.register_local_source(own)
                return tape.gradient(loss, [own, shared])

            of_own, of_shared = (tf.function(compute) if in_graph else compute)()
            assert of_shared.numpy().tolist() == [6.0]
            assert isinstance(of_own, tf.IndexedSlices)
            assert of_own.values.numpy().tolist() == [[(rank + 1.0) / divisor]]
            assert of_own.indices.numpy().tolist() == [rank]
    with tf.GradientTape() as tape:
        loss = (rank + 1.0) * tf.reduce_sum(shared * own)
    tape = hvd.DistributedGradientTape(tape, scale_local_gradients=False)
    tape.register_local_source(own)
    local, reduced = tape.get_local_and_global_gradients(loss, [shared, own])
    assert local[0].numpy().tolist() == [[2.0 * (rank + 1.0)]] * 2
    assert reduced[0].numpy().tolist() == [6.0]


@on_ranks(2)
def test_local_layers_of_a_model() -> None:
    rank = hvd.rank()
    layers = [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    layers[1](layers[0](tf.ones([1, 1])))
    for local_layers in (layers[0], [layers[0]], (layers[0],)):
        with tf.GradientTape() as tape:
            result = layers[1](layers[0](tf.constant([[rank + 1.0]])))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=local_layers, scale_local_gradients=False)
        found = tape.gradient(result, [layers[0].trainable_weights[0], layers[1].trainable_weights[0]])
        assert [float(item[0, 0]) for item in found] == [rank + 1.0, 1.5]
    with pytest.raises(ValueError, match="Layer"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["dense"])


@on_ranks(3)
def test_tapes_of_a_process_set() -> None:
    pair = hvd.add_process_set([0, 2])
    weight = tf.Variable(1.0)
    for in_graph in BOTH:

        def compute() -> Any:
            with tf.GradientTape() as tape:
                loss = weight * [3.0, 4.0, 7.0][hvd.rank()]
            return hvd.DistributedGradientTape(tape, process_set=pair).gradient(loss, [weight])

        # Ranks 0 and 2 have 3 and 7; rank 1 is on its own.
        assert float((tf.function(compute) if in_graph else compute)()[0]) == [5.0, 4.0, 5.0][hvd.rank()]
    ronde.barrier()
    hvd.remove_process_set(pair)


@on_ranks(2)
def test_adasum_of_gradients() -> None:
    weight = tf.Variable([1.0, 1.0])
    with tf.GradientTape() as tape:
        loss = weight[hvd.rank()] * (hvd.rank() + 1.0)
    (found,) = hvd.DistributedGradientTape(tape, op=hvd.Adasum, sparse_as_dense=True).gradient(loss, [weight])
    # Steps at a right angle are both taken whole.
    np.testing.assert_allclose(found.numpy(), [1.0, 2.0], rtol=1e-5)


@on_ranks(2)
def test_uneven_data_with_join() -> None:
    weights = network()
    for step in range(2 + hvd.rank()):
        words, classes = batches(3)[step]
        with tf.GradientTape() as tape:
            loss = loss_of(weights, own_part(words), own_part(classes))
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=True)
        descend(weights, tape.gradient(loss, weights))
    assert int(hvd.join()) == 1
    hvd.broadcast_variables(weights, root_rank=1)
    assert_same_on_all_ranks(weights)


@on_ranks(2)
def test_options_that_do_not_fit_are_refused() -> None:
    tape = tf.GradientTape()
    for options in ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, {"groups": 0}, {"groups": "two"}):
        with pytest.raises(ValueError, match=r"groups|predivide"):
            hvd.DistributedGradientTape(tape, **options)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tape))
    with pytest.raises(NotImplementedError, match="process set"):
        hvd.DistributedGradientTape(tape, op=hvd.Adasum, process_set=hvd.ProcessSet([0]))


@on_ranks(2)
def test_variables_of_keras() -> None:
    layer = tf.keras.layers.Dense(2)
    layer.build([None, 3])
    weights = layer.trainable_weights
    for in_graph in BOTH:
        for groups in (None, [list(weights)]):

            def compute(groups: Any = groups) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(layer(tf.ones([1, 3]) * (hvd.rank() + 1.0)))
                return hvd.DistributedGradientTape(tape, groups=groups).gradient(loss, weights)

            kernel, bias = (tf.function(compute) if in_graph else compute)()
            np.testing.assert_allclose(kernel.numpy(), np.full([3, 2], 1.5))
            np.testing.assert_allclose(bias.numpy(), [1.0, 1.0])
    nested = [[weights[0]], weights[1], 5]
    back = hvd.refs_to_vars(hvd.vars_to_refs(nested))
    assert back[0][0] is weights[0]
    assert back[1:] == [weights[1], 5] or back[1] is weights[1]
    assert hash(hvd.vars_to_refs(list(weights))) == hash(hvd.vars_to_refs(list(weights)))
