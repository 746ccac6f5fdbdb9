"""Times allreduces of ranks that share a GPU, in bursts, whatever library makes them.

A burst is a barrier, an event, so many averages in place of one tensor, and an event: the host gives the calls to the
stream as fast as it can and waits only in the end. Bursts are long enough for the clock's start and end not to matter.
The tensor is filled anew before each burst and compared with the average after it. Each rank prints a line for each
size, in the form that `peers.timed` prints.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gpu.stopwatch import Stopwatch
from training.timing import WrongResultError, times

PATTERN = 7
BURST_SECONDS = 0.05
MOST_CALLS = 2000
FEWEST_ROUNDS = 3
# Rounds of calls that take long end when these seconds are over.
MOST_SECONDS = 3.0


class Library(Protocol):
    """What reduces, as seen from one rank."""

    rank: int
    ranks: int

    def barrier(self) -> None:
        """Wait for all ranks."""

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""

    def allreduce(self, tensor: Tensor, name: str) -> None:
        """Average a tensor over all ranks, in place; what the stream is given next comes after it."""


class Burst:
    """One tensor, and what its average over the ranks has to be."""

    def __init__(self, library: Library, size: int, dtype: torch.dtype, device: torch.device) -> None:
        count = size // torch.empty(0, dtype=dtype).element_size()
        pattern = torch.arange(PATTERN, dtype=dtype, device=device).repeat(math.ceil(count / PATTERN))[:count]
        self._library = library
        self._name = f"{dtype}.{size}"
        self._mine = pattern + library.rank
        # Small numbers, and halves at the most: exact in every type.
        self._expected = pattern + (library.ranks - 1) / 2
        self._tensor = torch.empty_like(self._mine)
        self._stopwatch = Stopwatch(device)

    def seconds(self, calls: int) -> float:
        """Make so many calls one behind the other, check the result, and return how long each took on the device."""
        library, tensor, name = self._library, self._tensor, self._name
        tensor.copy_(self._mine)
        self._stopwatch.settle()
        library.barrier()
        self._stopwatch.start()
        for _ in range(calls):
            library.allreduce(tensor, name)
        taken = self._stopwatch.stop() / calls
        if not torch.equal(tensor, self._expected):
            raise WrongResultError(f"rank {library.rank}: the average over {library.ranks} ranks is wrong ({name})")
        return taken


def measure(library: Library, size: int, dtype: torch.dtype, rounds: int, device: torch.device) -> dict[str, object]:
    """Time the allreduce of `size` bytes in some rounds; a rank's figure is the median of its rounds."""
    burst = Burst(library, size, dtype, device)
    calls = 1
    # A call alone takes longer than one of many, so how many it takes for a burst is found step by step.
    for _ in range(3):
        taken = library.maximum(burst.seconds(calls))
        calls = min(max(math.ceil(BURST_SECONDS / taken), 1), MOST_CALLS)
    rounds = min(rounds, max(FEWEST_ROUNDS, int(MOST_SECONDS / (taken * calls))))
    seconds = [burst.seconds(calls) for _ in range(rounds)]
    return {
        "work": "allreduce",
        "dtype": str(dtype).removeprefix("torch."),
        "bytes": size,
        "calls": rounds * calls,
        **times(seconds),
    }


def main(library: Library, device: torch.device, words: Sequence[str] | None = None) -> None:
    """Read the command line, measure every size, and print this rank's lines."""
    parser = argparse.ArgumentParser(description="Time allreduces, as one rank.")
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS)
    parser.add_argument("works", nargs="+", help="types and sizes in bytes, as in float32:4096")
    options = parser.parse_args(words)
    for work in options.works:
        dtype, _, size = work.partition(":")
        line = measure(library, int(size), getattr(torch, dtype), options.rounds, device)
        print(json.dumps(line), flush=True)
        if device.type == "cuda":
            # Ranks share the memory, and the next size needs none of this.
            torch.cuda.empty_cache()
