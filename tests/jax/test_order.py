"""Collectives of compiled programs run in program order on every rank, whatever else the programs do meanwhile.

Ranks get different amounts of work between the same collectives, so each is ready for them in another order. All but
the last test would hang, or mix arrays up, if that order were followed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from values import close

import ronde.jax as hvd
from together import on_ranks


def busy(array: Any, rounds: int) -> Any:
    """Return the array, after some work whose result the compiler cannot guess."""
    square = jnp.full((32, 32), array.ravel()[0] if array.size else 0.0)
    for _ in range(rounds):
        square = jnp.tanh(square @ square)
    # The work is at most 1, and nothing is left of it when rounded.
    return array + jnp.round(square[0, 0] * 1e-3)


@on_ranks(2, 3)
def test_one_name_serves_many_collectives_of_a_program() -> None:
    # A name may be in flight only once: the engine would refuse it if two ran at the same time.
    work = np.random.default_rng(hvd.rank()).integers(0, 20, size=50)

    @jax.jit
    def program(arrays: Any) -> Any:
        return [
            hvd.allreduce(busy(array, rounds), op=hvd.Sum, name="same") for array, rounds in zip(arrays, work.tolist())
        ]

    arrays = [np.full(1000, float(number)) for number in range(50)]
    for _ in range(3):
        for number, found in enumerate(program(arrays)):
            close(found, np.full(1000, number * hvd.size()))


def random_program(random: np.random.Generator, work: np.random.Generator) -> tuple[Callable[..., Any], Any, Any]:
    """Return a program of many collectives, its arguments, and its results; ``work`` differs between ranks."""
    size = hvd.size()
    kinds = random.integers(0, 5, size=int(random.integers(5, 15)))
    rounds = [int(work.integers(0, 10)) for _ in kinds]
    rows = [int(random.integers(1, 4)) * size for _ in kinds]
    seeds = [int(random.integers(1 << 30)) for _ in kinds]
    everybody = [
        np.stack([np.random.default_rng(seed + rank).normal(size=(count, 3)) for rank in range(size)])
        for seed, count in zip(seeds, rows)
    ]

    def program(arrays: Any) -> Any:
        operations = [
            lambda array: hvd.allreduce(array, op=hvd.Sum),
            hvd.allgather,
            lambda array: hvd.broadcast(array, size - 1),
            hvd.alltoall,
            lambda array: hvd.reducescatter(array, op=hvd.Sum),
        ]
        return [operations[kind](busy(array, count)) for kind, array, count in zip(kinds, arrays, rounds)]

    def expected(kind: int, arrays: Any) -> Any:
        each = arrays.shape[1] // size
        mine = slice(hvd.rank() * each, (hvd.rank() + 1) * each)
        if kind == 0:
            return arrays.sum(0)
        if kind == 1:
            return arrays.reshape(-1, 3)
        if kind == 2:
            return arrays[-1]
        return arrays[:, mine].reshape(-1, 3) if kind == 3 else arrays.sum(0)[mine]

    results = [expected(kind, arrays) for kind, arrays in zip(kinds, everybody)]
    return jax.jit(program), [arrays[hvd.rank()] for arrays in everybody], results


@on_ranks(2, 3)
def test_random_programs_in_flight_together_do_not_mix() -> None:
    random = np.random.default_rng(7)
    work = np.random.default_rng(100 + hvd.rank())
    programs = [random_program(random, work) for _ in range(4)]
    # All calls are made before the first result is asked for.
    flights = []
    for number in random.integers(0, len(programs), size=25):
        program, arguments, expected = programs[number]
        flights.append((program(arguments), expected))
        if random.integers(4) == 0:
            flights.append(([hvd.allreduce(np.full(5, float(number)), op=hvd.Sum)], [np.full(5, number * hvd.size())]))
    for found, expected in flights:
        for one, other in zip(found, expected):
            close(one, other)


@on_ranks(2)
def test_what_nobody_asks_for_is_exchanged_all_the_same() -> None:
    # Rank 1 asks for the sum, and would wait for ever if the compiler had freed rank 0's program of it.
    @jax.jit
    def program(array: Any) -> Any:
        total = hvd.allreduce(array, op=hvd.Sum)
        return total if hvd.rank() == 1 else array

    close(program(np.ones(3)), np.full(3, 1.0 + hvd.rank()))


@on_ranks(2)
def test_names_let_threads_run_their_own_programs() -> None:
    results: dict[int, Any] = {}

    def train(number: int) -> None:
        program = jax.jit(lambda array: hvd.allreduce(busy(array, 5), op=hvd.Sum, name=f"thread.{number}"))
        for _ in range(5):
            results[number] = np.asarray(program(np.full(100, float(number))))

    threads = [threading.Thread(target=train, args=[number]) for number in range(3)]
    for thread in threads if hvd.rank() == 0 else reversed(threads):
        thread.start()
    for number, thread in enumerate(threads):
        thread.join()
        close(results[number], np.full(100, number * 2.0))
