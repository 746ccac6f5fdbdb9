"""Collectives on values, and the broadcast of variables."""

from __future__ import annotations

import keras
import numpy
import pytest

import horovod.keras as hvd
import ronde.keras
from ronde.keras.flavours import to_tensor
from together import on_ranks


@on_ranks(2, 3)
def test_values_are_reduced_gathered_and_broadcast() -> None:
    rank, size = hvd.rank(), hvd.size()
    total = size * (size - 1) / 2
    assert hvd.allreduce(float(rank)) == total / size
    assert hvd.allreduce(float(rank), average=False) == total
    assert hvd.allreduce(float(rank), op=hvd.Sum, name="sum") == total
    assert hvd.allreduce([rank, 1.0], op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5).tolist() == [total, size]
    assert hvd.allreduce(numpy.float32(rank), compression=hvd.Compression.fp16) == pytest.approx(total / size)
    assert hvd.allreduce(1 + 1e-12) == 1 + 1e-12
    assert hvd.allgather([rank] * (rank + 1)).tolist() == [other for other in range(size) for _ in range(other + 1)]
    assert hvd.broadcast(rank + 5, root_rank=1) == 6
    assert hvd.broadcast(numpy.arange(3) * rank, root_rank=1, name="arange").tolist() == [0, 1, 2]
    rows = hvd.reducescatter(numpy.ones((2 * size, 2)) * rank, op=hvd.Sum)
    numpy.testing.assert_array_equal(rows, numpy.full((2, 2), total))


@on_ranks(2)
def test_tensors_and_variables_are_values() -> None:
    tensor = to_tensor(numpy.array([1.0, 2.0], "float32") * (hvd.rank() + 1))
    assert hvd.allreduce(tensor).tolist() == [1.5, 3.0]
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    layer.build((None, 2))
    assert hvd.allgather(layer.kernel).shape == (4, 1)


@on_ranks(2)
def test_average_and_op_exclude_each_other() -> None:
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        assert ronde.keras.allreduce(1.0, average=False) == hvd.size()
    with pytest.warns(DeprecationWarning, match="average"), pytest.raises(ValueError, match="supersedes"):
        ronde.keras.allreduce(1.0, average=True, op=hvd.Sum)
    assert ronde.keras.allreduce(float(hvd.rank())) == 0.5


@on_ranks(2)
def test_a_value_that_cannot_be_shared_out_fails_on_all_ranks() -> None:
    with pytest.raises((ValueError, RuntimeError), match="no dimensions"):
        hvd.reducescatter(1.0 if hvd.rank() else 2.0)
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(1.0, root_rank=5)


@on_ranks(2)
def test_global_variables_are_of_graphs() -> None:
    with pytest.raises(RuntimeError, match="broadcast_global_variables"):
        hvd.broadcast_global_variables(0)
