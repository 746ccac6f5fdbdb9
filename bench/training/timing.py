"""How a rank times a work, whatever framework and library do it.

A work is a call with a clock around it, what has to be done before, and a look at the result. Calls go on until the
budget is spent. What comes out is the line that a rank prints, in the form that `peers.timed` prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

FEWEST_CALLS = 5
WARM_UP_BATCHES = 2


class Ranks(Protocol):
    """What a library must offer so that ranks can time something together."""

    rank: int
    ranks: int

    def barrier(self) -> None:
        """Wait for all ranks."""

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""


@dataclass(frozen=True)
class Work:
    """Something to be timed. `batch` calls follow each other before the result of the last is looked at."""

    bytes: int
    before: Callable[[], object]
    call: Callable[[], object]
    is_right: Callable[[], bool]
    batch: int
    # Whether ranks meet before each call, so that none is charged with another's delay.
    meet: bool


class WrongResultError(Exception):
    """The library under test computed something else than the average."""


def measure(library: Ranks, work: Work, budget: float) -> dict[str, object]:
    """Time a work for about `budget` seconds of calls."""
    seconds: list[float] = []
    for _ in range(WARM_UP_BATCHES):
        _batch(library, work, [])
    spent = 0.0
    while len(seconds) < FEWEST_CALLS or spent < budget:
        spent += library.maximum(_batch(library, work, seconds))
    return {"bytes": work.bytes, "calls": len(seconds), **times(seconds)}


def _batch(library: Ranks, work: Work, seconds: list[float]) -> float:
    """Make the calls of a batch, note the time of each and return that of all."""
    clock = time.perf_counter
    total = 0.0
    for _ in range(work.batch):
        work.before()
        if work.meet:
            library.barrier()
        start = clock()
        work.call()
        spent = clock() - start
        seconds.append(spent)
        total += spent
    if not work.is_right():
        raise WrongResultError(f"rank {library.rank}: the result over {library.ranks} ranks is wrong")
    return total


def times(seconds: Sequence[float]) -> dict[str, float]:
    """Return what a rank prints of the times of its calls."""
    ordered = sorted(seconds)
    count = len(ordered)
    return {
        "min_us": ordered[0] * 1e6,
        "median_us": ordered[count // 2] * 1e6,
        "p90_us": ordered[(count - 1) * 9 // 10] * 1e6,
        "mean_us": sum(ordered) / count * 1e6,
    }
