"""What goes wrong is told, on every rank that it concerns, in words; and the job goes on where it can."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from values import close

import ronde.jax as hvd
from together import on_ranks


@on_ranks(2)
def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="op is one of"):
        hvd.allreduce(np.ones(2), op=17)
    with pytest.raises(ValueError, match="root_rank 2 is not in"):
        hvd.broadcast(np.ones(2), root_rank=2)
    with pytest.raises(ValueError, match="no dimensions"):
        hvd.reducescatter(1.0)
    with pytest.raises(ValueError, match="reducescatter knows"):
        hvd.reducescatter(np.ones(2), op=hvd.Max)
    with pytest.raises(ValueError, match="no dimensions"):
        hvd.alltoall(1.0)
    with pytest.raises(ValueError, match="evenly over 2 ranks"):
        hvd.alltoall(np.ones(3))
    with pytest.raises(ValueError, match="3 entries"):
        hvd.alltoall(np.ones(3), splits=[1, 1, 1])
    with pytest.raises(ValueError, match="do not add up"):
        hvd.alltoall(np.ones(3), splits=[1, 1])
    with pytest.raises(ValueError, match="unknown size"):
        jax.jit(lambda rows: hvd.alltoall(rows, splits=[1, 2]))(np.ones(3))
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(np.ones(2), process_set=hvd.ProcessSet([0]))
    with pytest.raises(ValueError, match="int4"):
        hvd.allgather(jnp.ones(2, jnp.int4))
    with pytest.raises(ValueError, match="predivide"):
        hvd.reduce_gradients(np.ones(2), op=hvd.Sum, gradient_predivide_factor=2.0)
    close(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, float(hvd.size())))


@on_ranks(2)
def test_a_rank_outside_of_a_process_set_is_told_so() -> None:
    some = hvd.add_process_set([1])
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="rank 0 is not in"):
            hvd.allreduce(np.ones(2), process_set=some)
    else:
        close(hvd.allreduce(np.ones(2), process_set=some), np.ones(2))
    hvd.barrier()
    assert hvd.remove_process_set(some)


@on_ranks(2)
def test_ranks_that_disagree_hear_both_sides_and_go_on() -> None:
    own = np.ones(3 + hvd.rank())
    with pytest.raises(JaxRuntimeError, match=r"(?s)FAILED_PRECONDITION.*\(3\).*\(4\)"):
        hvd.allreduce(own)
    with pytest.raises(JaxRuntimeError, match=r"(?s)FAILED_PRECONDITION.*\(3\).*\(4\)"):
        jax.jit(hvd.allreduce)(own).block_until_ready()
    hvd.barrier()
    # The same place in the program, but another operation.
    with pytest.raises(JaxRuntimeError, match="FAILED_PRECONDITION"):
        hvd.allreduce(np.ones(2)) if hvd.rank() == 0 else hvd.broadcast(np.ones(2), 0)
    close(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, 2.0))


@on_ranks(2, 3)
def test_rows_of_compiled_programs_are_equal_or_nothing_comes_of_it() -> None:
    # With 3 ranks the sum is what the middle one expects; it must not take rows for those of others.
    with pytest.raises(JaxRuntimeError, match=r"INVALID_ARGUMENT: the ranks have .* rows"):
        jax.jit(hvd.allgather)(np.ones((hvd.rank() + 1, 2))).block_until_ready()
    hvd.barrier()
    with pytest.raises(JaxRuntimeError, match=r"INVALID_ARGUMENT: the ranks have .* rows"):
        jax.jit(hvd.alltoall)(np.ones((hvd.rank() + 1) * hvd.size())).block_until_ready()
    hvd.barrier()
    close(jax.jit(hvd.allgather)(np.ones((1, 2))), np.ones((hvd.size(), 2)))


@on_ranks(2)
def test_a_failure_in_flight_is_over_after_a_barrier() -> None:
    @jax.jit
    def failing(square: Any) -> Any:
        # Long enough to be still running when the call returns.
        square = jax.lax.fori_loop(0, 20, lambda _, value: jnp.tanh(value @ value), square)
        return hvd.allreduce(square[: 3 + hvd.rank()])

    with pytest.raises(JaxRuntimeError, match="FAILED_PRECONDITION"):
        failing(np.ones((300, 300))).block_until_ready()
    hvd.barrier()
    close(jax.jit(lambda array: hvd.allreduce(array, op=hvd.Sum))(np.ones(2)), np.full(2, 2.0))
    close(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, 2.0))


@on_ranks(3)
def test_a_program_of_a_set_that_is_gone_is_refused() -> None:
    some = hvd.add_process_set([0, 1])
    program = jax.jit(lambda rows: hvd.allgather(rows, process_set=some))
    if some.included():
        close(program(np.ones(2)), np.ones(4))
    hvd.barrier()
    assert hvd.remove_process_set(some)
    if hvd.rank() < 2:
        with pytest.raises(JaxRuntimeError, match="process set"):
            program(np.ones(2)).block_until_ready()
    hvd.barrier()
