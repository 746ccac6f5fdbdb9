"""How often everything has to run, and which run is next. Nothing here reads or writes anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a unit is."""

    RUST = "Rust executable"
    PYTHON = "Python file"


class Mode(Enum):
    """What else the machine does during a run."""

    IDLE = "idle"
    LOAD = "load"


GOALS = {
    (Kind.RUST, Mode.IDLE): 5,
    (Kind.RUST, Mode.LOAD): 20,
    (Kind.PYTHON, Mode.LOAD): 5,
}
"""After how many runs of a unit a campaign has run long enough. Python files have no goal for idle runs, which `make
test` does: those come when all goals are reached."""


@dataclass(frozen=True)
class Candidate:
    """A unit that could run in a mode: how often it has, and how long it took the last time, if it ever ran."""

    name: str
    kind: Kind
    mode: Mode
    runs: int
    seconds: float | None

    @property
    def goal(self) -> int:
        """How many runs are wanted."""
        return GOALS.get((self.kind, self.mode), 0)

    @property
    def missing(self) -> int:
        """How many runs are missing."""
        return max(0, self.goal - self.runs)

    @property
    def share(self) -> float:
        """Which part of the goal is reached; without a goal, as if one run less than none had been wanted."""
        return self.runs / self.goal if self.goal else 1.0 + self.runs


def next_run(candidates: Iterable[Candidate]) -> Candidate:
    """Return what to run next: what has run least, measured by its goal, and of those what takes the least time.

    What never ran comes before what did as often, so that its time becomes known.
    """
    return min(candidates, key=lambda one: (one.share, one.seconds or 0.0, one.name, one.mode.value))


def seconds_missing(candidates: Iterable[Candidate]) -> float:
    """Return how long the missing runs take, as far as their times are known."""
    return sum(one.missing * (one.seconds or 0.0) for one in candidates)
