"""How a rank written in Python times and checks an allreduce.

Shared by `front.py` (ours) and `gloo.py` (a peer), and written to do exactly what
`openmpi.c` and the Rust probe do: fill, barrier, a batch of calls each timed on
its own, then every element of the result checked; batches go on until the budget
is spent. A batch is as long as repeated sums stay exact in f32, so checking its
last result checks every call in it. Each rank prints one JSON line for each size.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Protocol

PATTERN = 7
# The first call of a batch finds limiters and queues rested; most calls should not be first ones.
SHORTEST_BATCH = 3
LONGEST_BATCH = 100
MOST_CALLS = 100_000
FEWEST_CALLS = 5


class Library(Protocol):
    """One library under test, as seen from one rank."""

    rank: int
    ranks: int

    def prepare(self, count: int, pattern: list[float], expected: list[float]) -> None:
        """Make the page-aligned tensor of `count` f32, what it is filled from, and what one call makes of it."""

    def fill(self) -> None:
        """Set the tensor to this rank's pattern."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def allreduce(self) -> None:
        """Make the call under test: sum the tensor over all ranks, in place."""

    def is_expected(self, scale: float) -> bool:
        """Tell whether every element is what one call makes of it, times `scale`."""

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""


def summed(index: int, ranks: int) -> float:
    """Return the sum over all ranks at an index, where rank r contributes index % 7 + r."""
    return float(ranks * (index % PATTERN) + ranks * (ranks - 1) // 2)


def exact_calls(ranks: int) -> int:
    """Say how often a sum can be summed again before f32 rounds or overflows.

    A power of two of ranks only moves the exponent; otherwise 24 bits are what there is.
    """
    largest = summed(PATTERN - 1, ranks)
    bound = 2.0**120 if ranks & (ranks - 1) == 0 else 2.0**24
    calls = 1
    while calls < LONGEST_BATCH and largest * ranks < bound:
        largest *= ranks
        calls += 1
    return calls


def interface_bytes() -> tuple[int, int]:
    """Count the bytes received and sent so far by this host's interfaces, loopback aside."""
    received = sent = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            fields = counters.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


class WrongResultError(Exception):
    """The library under test computed something else than the sum."""


def _batch(library: Library, calls: int, seconds: list[float]) -> float:
    """Run one batch, note each call's time and return how long the slowest rank took for all."""
    clock = time.perf_counter
    library.fill()
    library.barrier()
    total = 0.0
    for _ in range(calls):
        start = clock()
        library.allreduce()
        spent = clock() - start
        seconds.append(spent)
        total += spent
    if not library.is_expected(float(library.ranks) ** (calls - 1)):
        raise WrongResultError(f"rank {library.rank}: the sum over {library.ranks} ranks is wrong after {calls} calls")
    return library.maximum(total)


def measure(library: Library, size: int, budget: float) -> dict[str, object]:
    """Time the allreduce of `size` bytes for about `budget` seconds."""
    ranks = library.ranks
    library.prepare(
        size // 4,
        [float(index + library.rank) for index in range(PATTERN)],
        [summed(index, ranks) for index in range(PATTERN)],
    )
    _batch(library, 1, [])
    one = _batch(library, 1, [])
    per_batch = min(exact_calls(ranks), max(SHORTEST_BATCH, int(budget / 4 / one)))
    _batch(library, per_batch, [])
    seconds: list[float] = []
    spent = 0.0
    before = interface_bytes()
    while len(seconds) < FEWEST_CALLS or (spent < budget and len(seconds) < MOST_CALLS):
        spent += _batch(library, per_batch, seconds)
    after = interface_bytes()
    calls = len(seconds)
    mean = sum(seconds) / calls
    seconds.sort()
    return {
        "work": "allreduce",
        "rank": library.rank,
        "bytes": size,
        "calls": calls,
        "min_us": seconds[0] * 1e6,
        "median_us": seconds[calls // 2] * 1e6,
        "p90_us": seconds[(calls - 1) * 9 // 10] * 1e6,
        "mean_us": mean * 1e6,
        "received_per_call": (after[0] - before[0]) / calls,
        "sent_per_call": (after[1] - before[1]) / calls,
    }


def report(library: Library, sizes: list[int], budget: float) -> None:
    """Measure every size and print this rank's lines."""
    for size in sizes:
        print(json.dumps(measure(library, size, budget)), flush=True)
