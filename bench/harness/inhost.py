"""The in-host table: all ranks on this machine, ours beside Gloo, Open MPI and plain copies.

Tools take turns in rounds, so that whatever else the machine does meanwhile hits all
of them alike. Each turn is a launch of its own.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import jobs
from harness.aims import (
    COPY_ALONE,
    FLOOR,
    GLOO,
    IN_HOST,
    IN_HOST_RANKS,
    OPEN_MPI,
    OVERSUBSCRIBED,
    RONDE,
    RONDE_JOB,
    RONDE_PYTHON,
    Aim,
)
from harness.environment import OurBinaries, say
from harness.figures import Figures, Line
from harness.ground import Ground, Layout, this_machine
from harness.report import Report

OVERSUBSCRIBED_RANKS = 8
OVERSUBSCRIBED_CORES = 2


@dataclass(frozen=True)
class Peers:
    """What we compare with: Python with torch, and Open MPI's program where there is one."""

    python: Path
    openmpi: Path | None


@dataclass(frozen=True)
class Effort:
    """How long to measure: launches of each tool, and seconds for each size of a launch."""

    rounds: int
    openmpi_launches: int
    seconds: float


Tool = Callable[[Sequence[int]], "list[Line]"]


def in_host(report: Report, ours: OurBinaries, peers: Peers, effort: Effort, ranks: int, aims: Sequence[Aim]) -> None:
    """Measure what the aims need with so many ranks, and add it to the report."""
    plain = [aim for aim in aims if aim.section != OVERSUBSCRIBED]
    crowded = [aim for aim in aims if aim.section == OVERSUBSCRIBED]
    with this_machine() as ground:
        if plain:
            figures = _measure(ground, ours, peers, effort, ranks, plain)
            report.keep(f"{ranks} ranks on this machine", figures)
            for aim in plain:
                report.compare(aim, figures, has_aim=ranks == IN_HOST_RANKS)
        if crowded:
            with _only_cores(OVERSUBSCRIBED_CORES):
                figures = _measure(ground, ours, peers, effort, OVERSUBSCRIBED_RANKS, crowded)
            report.keep(OVERSUBSCRIBED, figures)
            for aim in crowded:
                report.compare(aim, figures)


def select(sections: Sequence[str], sizes: Sequence[int]) -> list[Aim]:
    """Return the in-host aims of these sections, cut down to these sizes where any are named."""
    chosen = []
    for aim in IN_HOST:
        kept = tuple(size for size in aim.sizes if not sizes or size in sizes)
        if aim.section in sections and kept:
            chosen.append(Aim(aim.section, kept, aim.ours, aim.theirs, aim.measure, aim.bound))
    return chosen


def _measure(
    ground: Ground, ours: OurBinaries, peers: Peers, effort: Effort, ranks: int, aims: Sequence[Aim]
) -> Figures:
    wanted: dict[str, set[int]] = defaultdict(set)
    for aim in aims:
        wanted[aim.ours].update(aim.sizes)
        wanted[aim.theirs].update(aim.sizes)
    tools = _tools(ground, ours, peers, effort.seconds, ranks)
    figures = Figures()
    for turn in range(max(effort.rounds, effort.openmpi_launches)):
        for name, tool in tools.items():
            launches = effort.openmpi_launches if name == OPEN_MPI else effort.rounds
            if wanted[name] and turn < launches:
                say(f"{ranks} ranks, launch {turn + 1} of {launches}: {name}")
                figures.add(name, tool(sorted(wanted[name])))
    return figures


def _tools(ground: Ground, ours: OurBinaries, peers: Peers, seconds: float, ranks: int) -> dict[str, Tool]:
    layout = Layout((ranks,))
    pace = ["--seconds", seconds]

    def probe(*words: object) -> Tool:
        return lambda sizes: jobs.run_probe(ground, layout, ours, [*words, *pace, *sizes])

    def front(sizes: Sequence[int]) -> list[Line]:
        command = [peers.python, "-m", "front", *pace, *sizes]
        return jobs.run_ronde(ground, layout, ours, command)

    tools: dict[str, Tool] = {
        RONDE: probe("allreduce", "--via", "world"),
        GLOO: lambda sizes: jobs.run_gloo(ground, layout, peers.python, seconds, sizes),
        FLOOR: probe("copy"),
        RONDE_JOB: probe("allreduce", "--via", "engine"),
        COPY_ALONE: probe("copy", "--alone"),
    }
    if ours.package is not None:
        tools[RONDE_PYTHON] = front
    openmpi = peers.openmpi
    if openmpi is not None:
        tools[OPEN_MPI] = lambda sizes: jobs.run_openmpi(ground, ranks, openmpi, seconds, sizes)
    return tools


@contextmanager
def _only_cores(count: int) -> Iterator[None]:
    """Keep what is started meanwhile to so many cores, on a machine with more of them too."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
