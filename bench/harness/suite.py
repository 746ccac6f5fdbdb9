"""Works of training that several tools do in turn, and what is compared in them.

Work by work, tools take turns in rounds, each turn a launch of its own: what is compared is measured within seconds,
and whatever else the machine does meanwhile hits all alike. Which tools do a work follows from the aims.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.aims import TIME_WAITED, TRAINING_RANKS, Aim
from harness.environment import say
from harness.figures import Figures, Line
from harness.jobs import JobError
from harness.report import Report

# Does the work of a name in a launch of its own and returns what the ranks printed.
Tool = Callable[[str], "list[Line]"]


@dataclass(frozen=True)
class Suite:
    """The works of one framework: the aims' section of each, by the name that the command line has for it."""

    sections: Mapping[str, str]
    aims: Sequence[Aim]

    def tools_of(self, work: str) -> set[str]:
        """Return the tools that an aim compares in this work."""
        return {tool for aim in self._aims_of(work) for tool in (aim.ours, aim.theirs)}

    def measure(self, tools: Mapping[str, Tool], works: Sequence[str], rounds: int) -> dict[str, Figures]:
        """Launch every tool that an aim names for each of the works, `rounds` times."""
        figures: dict[str, Figures] = defaultdict(Figures)
        for work in works:
            compared = [name for name in tools if name in self.tools_of(work)]
            for turn in range(rounds):
                for name in compared:
                    say(f"{self.sections[work]}, launch {turn + 1} of {rounds}: {name}")
                    lines = tools[name](work)
                    figures[work].add(name, lines)
                    figures[work].add(TIME_WAITED, [_waited(line) for line in lines if "waited_us" in line])
        return figures

    def add(self, report: Report, figures: Mapping[str, Figures], works: Sequence[str], ranks: int) -> None:
        """Add to the report what the aims compare in the figures of these works."""
        for work in works:
            report.keep(f"{self.sections[work]}, {ranks} ranks", figures[work])
            self._check_sizes(work, figures[work])
            for aim in self._aims_of(work):
                report.compare(aim, figures[work], has_aim=ranks == TRAINING_RANKS)

    def _check_sizes(self, work: str, figures: Figures) -> None:
        """Refuse figures that no aim is for: they would be left out of the report without a word."""
        wanted = {size for aim in self._aims_of(work) for size in aim.sizes}
        for tool, size in figures.launches:
            if size not in wanted:
                raise JobError(f"{tool} measured {size} bytes in {work!r}, but the aims are for {sorted(wanted)}")

    def _aims_of(self, work: str) -> list[Aim]:
        return [aim for aim in self.aims if aim.section == self.sections[work]]


def _waited(line: Line) -> Line:
    """Return the line of a rank that waited with the time that passed instead of the time that it computed."""
    return {**line, **dict.fromkeys(("min_us", "median_us", "p90_us", "mean_us"), line["waited_us"])}
