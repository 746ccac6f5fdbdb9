"""From what single ranks print to one figure for each tool and size.

A collective is as fast as its slowest rank, so of one launch the largest of the
ranks' medians counts. Of several launches the median counts, since all of them are
what a user might get; only Open MPI, which falls into a slow or a fast mode by
launch, is credited with its best.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.aims import OPEN_MPI

Line = dict[str, Any]


@dataclass(frozen=True)
class Launch:
    """One tool's figures for one size in one launch, over all ranks. Times in microseconds."""

    calls: int
    minimum: float
    median: float
    p90: float
    mean: float
    sent_per_call: dict[int, float]

    @classmethod
    def of_ranks(cls, lines: Iterable[Line]) -> Launch:
        """Combine what the ranks of one launch printed."""
        ranks = list(lines)
        return cls(
            calls=min(line["calls"] for line in ranks),
            minimum=max(line["min_us"] for line in ranks),
            median=max(line["median_us"] for line in ranks),
            p90=max(line["p90_us"] for line in ranks),
            mean=max(line["mean_us"] for line in ranks),
            sent_per_call={line["rank"]: line.get("sent_per_call", 0.0) for line in ranks},
        )


@dataclass
class Figures:
    """Everything measured, by tool and size."""

    launches: dict[tuple[str, int], list[Launch]] = field(default_factory=lambda: defaultdict(list))

    def add(self, tool: str, lines: Iterable[Line]) -> None:
        """Take in one launch of a tool."""
        by_size: dict[int, list[Line]] = defaultdict(list)
        for line in lines:
            if "median_us" in line:
                by_size[line["bytes"]].append(line)
        for size, ranks in by_size.items():
            self.launches[tool, size].append(Launch.of_ranks(ranks))

    def best_or_typical(self, tool: str, size: int) -> float | None:
        """Return the time that counts for a tool and size, in microseconds, if it was measured."""
        medians = [launch.median for launch in self.launches.get((tool, size), [])]
        if not medians:
            return None
        return min(medians) if tool == OPEN_MPI else statistics.median(medians)

    def sent_per_call(self, tool: str, size: int, rank: int) -> float | None:
        """Return the bytes that the rank's host sent for each call, if they were counted."""
        counts = [launch.sent_per_call[rank] for launch in self.launches.get((tool, size), [])]
        return statistics.median(counts) if counts else None


def one_launch(size: int, seconds: float) -> Line:
    """Return the line for something that happens once a launch, and is timed from outside."""
    times = dict.fromkeys(("min_us", "median_us", "p90_us", "mean_us"), seconds * 1e6)
    return {"rank": 0, "bytes": size, "calls": 1, **times}
