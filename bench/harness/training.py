"""Training with PyTorch: our Horovod front beside torch.distributed and, where it was built, upstream Horovod.

Work by work, tools take turns in rounds, each turn a launch of its own: what is compared is measured within seconds,
and whatever else the machine does meanwhile hits all alike. Which tools do a work follows from the aims.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness import jobs
from harness.aims import (
    DDP,
    GLOO,
    HOROVOD,
    NO_EXCHANGE,
    RONDE,
    TIME_WAITED,
    TRAINING,
    TRAINING_RANKS,
    TRAINING_SECTIONS,
)
from harness.environment import OurBinaries, UpstreamHorovod, say
from harness.figures import Figures, Line
from harness.ground import Ground, Layout, this_machine
from harness.report import Report

# Does the work of a name in a launch of its own and returns what the ranks printed.
Tool = Callable[[str], "list[Line]"]


def training(
    report: Report,
    ours: OurBinaries,
    python: Path,
    upstream: UpstreamHorovod | None,
    works: Sequence[str],
    ranks: int,
    rounds: int,
    seconds: float,
) -> None:
    """Measure these works with so many ranks, and add what the aims compare to the report."""
    with this_machine() as ground:
        tools = _tools(ground, ours, python, upstream, ranks, seconds)
        figures = measure(tools, works, rounds)
    add_training(report, figures, works, ranks)
    if upstream is None:
        report.notes.append("upstream Horovod was left out: make bench-horovod compiles and measures it too")


def add_training(report: Report, figures: dict[str, Figures], works: Sequence[str], ranks: int) -> None:
    """Add to the report what the aims compare in the figures of these works."""
    for work in works:
        section = TRAINING_SECTIONS[work]
        report.keep(f"{section}, {ranks} ranks", figures[work])
        for aim in TRAINING:
            if aim.section == section:
                report.compare(aim, figures[work], has_aim=ranks == TRAINING_RANKS)


def tools_of(work: str) -> set[str]:
    """Return the tools that an aim compares in this work."""
    return {tool for aim in TRAINING if aim.section == TRAINING_SECTIONS[work] for tool in (aim.ours, aim.theirs)}


def measure(tools: Mapping[str, Tool], works: Sequence[str], rounds: int) -> dict[str, Figures]:
    """Launch every tool that an aim names for each of the works, `rounds` times."""
    figures: dict[str, Figures] = defaultdict(Figures)
    for work in works:
        compared = [name for name in tools if name in tools_of(work)]
        for turn in range(rounds):
            for name in compared:
                say(f"{TRAINING_SECTIONS[work]}, launch {turn + 1} of {rounds}: {name}")
                lines = tools[name](work)
                figures[work].add(name, lines)
                figures[work].add(TIME_WAITED, [_waited(line) for line in lines if "waited_us" in line])
    return figures


def _waited(line: Line) -> Line:
    """Return the line of a rank that waited with the time that passed instead of the time that it computed."""
    return {**line, **dict.fromkeys(("min_us", "median_us", "p90_us", "mean_us"), line["waited_us"])}


def _tools(
    ground: Ground, ours: OurBinaries, python: Path, upstream: UpstreamHorovod | None, ranks: int, seconds: float
) -> dict[str, Tool]:
    layout = Layout((ranks,))

    def words(module: str, work: str) -> list[object]:
        return ["-m", module, "--seconds", seconds, work]

    def torch(who: str, module: str) -> Tool:
        return lambda work: jobs.run_torch(who, ground, layout, [python, *words(module, work)])

    tools: dict[str, Tool] = {
        RONDE: lambda work: jobs.run_ronde(ground, layout, ours, [python, *words("training.hvd", work)]),
        GLOO: torch(GLOO, "training.gloo"),
        DDP: torch(DDP, "training.gloo"),
        NO_EXCHANGE: torch(NO_EXCHANGE, "training.alone"),
    }
    if upstream is not None:
        tools[HOROVOD] = lambda work: jobs.run_horovod(ground, ranks, upstream, words("training.hvd", work))
    return tools
