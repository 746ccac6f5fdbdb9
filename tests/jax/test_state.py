"""Ranks come to the same state: trees of arrays, optimizer states, random generators, any object."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from values import close, same

import ronde.jax as hvd
from together import on_ranks


@on_ranks(2, 3)
def test_parameters_become_the_roots() -> None:
    own = {
        "layers": [{"w": np.full((2, 3), hvd.rank(), np.float32), "b": jnp.zeros(3, jnp.bfloat16) + hvd.rank()}],
        "raw key": jax.random.PRNGKey(hvd.rank()),
        "key": jax.random.key(hvd.rank()),
        "flag": np.array(hvd.rank() == 1),
        "steps": 10 + hvd.rank(),
        "rate": 0.5 * hvd.rank(),
        "nothing": None,
        "empty": np.zeros((0, 2)),
    }
    found = hvd.broadcast_parameters(own, root_rank=1)
    assert jax.tree.structure(found) == jax.tree.structure(own)
    same(found["layers"][0]["w"], np.ones((2, 3), np.float32))
    assert found["layers"][0]["b"].dtype == jnp.bfloat16
    close(found["layers"][0]["b"], np.ones(3))
    same(found["raw key"], np.asarray(jax.random.PRNGKey(1)))
    assert jnp.issubdtype(found["key"].dtype, jax.dtypes.prng_key)
    same(jax.random.key_data(found["key"]), np.asarray(jax.random.key_data(jax.random.key(1))))
    same(found["flag"], np.array(True))
    assert found["steps"] == 11
    assert type(found["steps"]) is int
    assert found["rate"] == 0.5
    assert found["empty"].shape == (0, 2)
    compiled = jax.jit(lambda tree: hvd.broadcast_parameters(tree, root_rank=1))(own["layers"])
    same(compiled[0]["w"], np.ones((2, 3), np.float32))


@on_ranks(2)
def test_optimizer_state_becomes_the_roots() -> None:
    params = {"w": np.ones(3)}
    optimizer = optax.adam(0.1)
    state: Any = optimizer.init(params)
    for _ in range(hvd.rank() + 1):
        _, state = optimizer.update({"w": np.full(3, 1.0 + hvd.rank())}, state, params)
    found = hvd.broadcast_optimizer_state(state, root_rank=0)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert found[0].count.item() == 1
    close(found[0].mu["w"], np.full(3, 0.1))


@on_ranks(2, 3)
def test_objects_travel() -> None:
    rank = hvd.rank()
    assert hvd.broadcast_object({"rank": rank, "array": [1] * 1000}, root_rank=1) == {"rank": 1, "array": [1] * 1000}
    assert hvd.broadcast_object(lambda: rank, root_rank=0, name="function")() == 0
    assert hvd.allgather_object("x" * rank) == ["x" * other for other in range(hvd.size())]
    some = hvd.add_process_set(list(range(1, hvd.size())))
    if some.included():
        assert hvd.allgather_object(rank, process_set=some) == some.ranks
        assert hvd.broadcast_object(rank, root_rank=1, process_set=some) == 1
    hvd.barrier()
    hvd.remove_process_set(some)


@on_ranks(2)
def test_elastic_state_is_taken_over_from_rank_0_and_restored_after_a_loss() -> None:
    state = hvd.elastic.JaxState(params={"w": np.full(2, float(hvd.rank()))}, epoch=hvd.rank())
    state.sync()
    close(state.params["w"], np.zeros(2))
    assert state.epoch == 0
    state.epoch = 5
    state.commit()
    state.epoch = 6
    state.restore()
    assert state.epoch == 5
