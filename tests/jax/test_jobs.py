"""Whole jobs: their beginning and end, with programs in flight; other ways to compile; the example."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ranks import REPOSITORY, launch, on_ranks

HERE = Path(__file__).parent
TOGETHER = REPOSITORY / "tests" / "python" / "together.py"
# Generous: the machine may be busy, and importing and compiling are slow.
SECONDS = 300.0
FOLDERS = os.pathsep.join([str(HERE), str(TOGETHER.parent)])


def slow_sum(value: float) -> Any:
    """Start a program that is still running when this returns, with a collective at its end."""
    import jax
    import jax.numpy as jnp

    import ronde.jax as hvd

    @jax.jit
    def program(square: Any) -> Any:
        square = jax.lax.fori_loop(0, 30, lambda _, square: jnp.tanh(square @ square), square)
        return hvd.allreduce(value + 0.0 * square[0, 0], op=hvd.Sum)

    return program(jnp.ones((400, 400)))


def one_looks_the_other_ends() -> None:
    import ronde.jax as hvd

    hvd.init()
    result = slow_sum(hvd.rank() + 1.0)
    if hvd.rank() == 0:
        print(f"sum {result:.1f}")


def test_a_rank_that_ends_first_still_takes_part_in_what_it_started() -> None:
    done = on_ranks(2, one_looks_the_other_ends, SECONDS, PYTHONPATH=FOLDERS)
    assert done.status == 0, done.output
    assert done.lines_of(0) == ["sum 3.0"], done.output
    assert done.lines_of(1) == [], done.output


def leaves_and_comes_back() -> None:
    import jax.numpy as jnp
    import pytest
    from jax.errors import JaxRuntimeError

    import ronde.jax as hvd

    with pytest.raises(ValueError, match=r"has not been initialized; use hvd.init\(\)"):
        hvd.allreduce(jnp.ones(2))
    hvd.init()
    import jax

    program = jax.jit(lambda rows: hvd.allgather(rows, name="rows"))
    assert program(jnp.ones(2)).shape == (4,)
    result = slow_sum(1.0)
    hvd.shutdown()
    assert result.item() == 2.0
    with pytest.raises(JaxRuntimeError, match=r"FAILED_PRECONDITION: .*has not been initialized"):
        program(jnp.ones(2)).block_until_ready()
    hvd.init()
    assert hvd.allreduce(jnp.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]
    assert program(jnp.ones(2)).shape == (4,)
    print("back")


def test_leaving_waits_for_programs_in_flight_and_one_may_come_back() -> None:
    done = on_ranks(2, leaves_and_comes_back, SECONDS, PYTHONPATH=FOLDERS)
    assert done.status == 0, done.output
    assert done.lines_of(0) == done.lines_of(1) == ["back"], done.output


def one_is_killed() -> None:
    import jax.numpy as jnp

    import ronde.jax as hvd

    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(jnp.ones(2))


def test_the_loss_of_a_rank_ends_the_wait_of_the_others() -> None:
    done = on_ranks(2, one_is_killed, SECONDS, PYTHONPATH=FOLDERS)
    assert done.status != 0
    assert "rank 1 on localhost failed first: killed by signal 9 (SIGKILL)" in done.output, done.output


def one_does_not_come() -> None:
    import jax
    import pytest
    from jax.errors import JaxRuntimeError

    import ronde.jax as hvd

    hvd.init()
    hvd.barrier()
    if hvd.rank() == 0:
        with pytest.raises(JaxRuntimeError, match=r"ABORTED: rank 1 on .* has left the job"):
            jax.jit(hvd.allreduce)(1.0).block_until_ready()
        print("heard")


def test_a_rank_that_waits_for_one_that_has_left_is_told() -> None:
    done = on_ranks(2, one_does_not_come, SECONDS, PYTHONPATH=FOLDERS)
    assert done.status == 0, done.output
    assert done.lines_of(0) == ["heard"], done.output


def in_opposite_order() -> None:
    import jax

    import ronde.jax as hvd

    hvd.init()
    names = ["first", "second"] if hvd.rank() == 0 else ["second", "first"]
    jax.jit(lambda value: [hvd.allreduce(value, name=name) for name in names])(1.0)


def test_programs_that_differ_in_their_order_are_reported() -> None:
    # Programs wait for one collective after the other, so these two wait for each other. Both have to have come by the
    # time that the job ends, also where one has to compile for longer.
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "15"}
    done = on_ranks(2, in_opposite_order, SECONDS, PYTHONPATH=FOLDERS, **stall)
    assert done.status != 0
    assert 'allreduce "first" has waited' in done.output, done.output
    assert 'allreduce "second" has waited' in done.output, done.output


def one_raises() -> None:
    import ronde.jax as hvd

    hvd.init()
    if hvd.rank() == 0:
        slow_sum(1.0)
        raise RuntimeError("out of ideas")
    # Never comes to the collective, nor to an end.
    signal.pause()


def test_an_exception_ends_the_job_whatever_is_in_flight() -> None:
    done = on_ranks(2, one_raises, SECONDS, PYTHONPATH=FOLDERS)
    assert done.status != 0
    assert "rank 0 on localhost failed first" in done.output
    assert "RuntimeError: out of ideas" in done.output


def loses_a_rank_and_goes_on() -> None:
    import jax
    import jax.numpy as jnp

    import ronde.jax as hvd

    hvd.init()
    step = jax.jit(lambda value: hvd.allreduce(value, op=hvd.Sum))
    attempts = []

    @hvd.elastic.run
    def train(state: Any) -> float:
        attempts.append(state.batch)
        state.batch += 1
        state.value = step(jnp.asarray(1.0))
        if len(attempts) == 1:
            # What a program raises when a rank is lost; nobody is here, so that the job can go on.
            raise jax.errors.JaxRuntimeError("ABORTED: rank 1 was lost")
        return state.value.item()

    assert train(hvd.elastic.JaxState(batch=7, value=0.0)) == hvd.size()
    assert attempts == [7, 7]
    print("went on")


def test_elastic_training_starts_over_after_a_loss() -> None:
    done = on_ranks(2, loses_a_rank_and_goes_on, SECONDS, PYTHONPATH=FOLDERS)
    assert done.status == 0, done.output
    assert done.lines_of(0) == done.lines_of(1) == ["went on"], done.output


def takes_another_way() -> None:
    """Run checks on ranks each of which compiles in the way that ``WAYS`` says."""
    import jax

    import ronde.jax as hvd
    from ronde.jax import _effects, primitive

    way = os.environ["WAYS"].split(",")[int(os.environ["HOROVOD_RANK"])]
    if way != "native":
        getattr(_effects, f"do_{way}")(primitive.collective_p)
    hvd.init(process_sets="dynamic")
    program = jax.jit(hvd.allreduce).lower(1.0).as_text()
    assert ("@ronde_collective" in program) == (way == "native")
    together = importlib.import_module("together")
    together.run_checks(os.environ["CHECKS"].split())


OPERATIONS = [
    "test_min_max_product_and_factors",
    "test_types_that_the_engine_has_not_travel_as_others",
    "test_a_group_travels_together_whatever_is_in_it",
    "test_allgather_joins_rows",
    "test_alltoall_exchanges_equal_shares",
    "test_reducescatter_deals_rows_and_the_first_ranks_get_one_more",
]
OTHERS = [
    "test_transformations:test_loops_and_branches",
    "test_order:test_one_name_serves_many_collectives_of_a_program",
]


# Ranks with GPUs and without may work together, so two ways meet in one job as well.
@pytest.mark.parametrize("ways", ["native,without_library", "without_private_parts,without_private_parts"])
def test_other_ways_to_compile_give_the_same(ways: str) -> None:
    checks = [*(f"test_operations:{name}" for name in OPERATIONS), *OTHERS]
    done = on_ranks(2, takes_another_way, SECONDS, PYTHONPATH=FOLDERS, WAYS=ways, CHECKS=" ".join(checks))
    assert done.status == 0, done.output
    for rank in range(2):
        assert sum('{"passed"' in line for line in done.lines_of(rank)) == len(checks), done.output


def test_the_private_parts_of_jax_are_where_they_were() -> None:
    from ronde.jax import _effects

    assert _effects.PRIVATE is None, (
        f"{_effects.PRIVATE}. Collectives fall back to callbacks, which are slower; python/ronde/jax/_effects.py says "
        f"what is used and why"
    )


def test_what_docstrings_show_is_true() -> None:
    for name in ("arguments", "compression", "elastic", "functions", "gradients", "job", "ops", "optimizer"):
        result = doctest.testmod(importlib.import_module(f"ronde.jax.{name}"))
        assert result.failed == 0, name
    result = doctest.testmod(importlib.import_module("ronde.jax"))
    assert result.attempted > 0
    assert result.failed == 0


def test_without_jax_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['jax'] = None; import ronde.jax"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: ronde.jax needs JAX, which is not installed; `pip install jax` gets it" in done.stderr


def figures(output: str, name: str) -> list[float]:
    return [float(found) for found in re.findall(rf"(?<!test ){name} ([\d.]+)", output)]


def test_the_example_learns_alike_on_two_ranks_and_on_one() -> None:
    script = str(REPOSITORY / "examples" / "jax_mlp.py")
    alone, together = (
        launch(ranks, [sys.executable, script, "--epochs", "3", "--batch-size", str(24 // ranks)], SECONDS)
        for ranks in (1, 2)
    )
    for done in (alone, together):
        assert done.status == 0, done.output
        assert len(figures(done.output, "loss")) == 3, done.output
    # Rounding grows from step to step, so only the beginning can be compared closely.
    assert figures(together.output, "loss")[0] == pytest.approx(figures(alone.output, "loss")[0], rel=1e-4)
    for done in (alone, together):
        assert figures(done.output, "accuracy")[-1] > 90.0, done.output
