"""The multi-host table: ranks on test hosts whose links are limited, ours beside Gloo and one plain stream.

The floor counts bytes through each host's link: of S bytes, 2·S·(H-1)/H must leave
each of H hosts, at the speed that one plain stream reached in the same run. Before any
time is believed, each pair of ranks must have used the link it should (TCP between
hosts, shared memory inside one), and the interfaces must have carried the floor's bytes:
fewer would mean a path that real hosts do not have.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import jobs
from harness.aims import FEWEST_BYTES, GLOO, LINK, MIB, RONDE, Aim, Measure, multi_host_aims
from harness.environment import BENCH, OurBinaries, SetupError, say
from harness.figures import Figures
from harness.ground import Layout, MadeHosts, made_hosts
from harness.report import Report, Row

STREAM_SECONDS = 2.0


@dataclass(frozen=True)
class Case:
    """Ranks laid out over hosts with links of some speed, and the sizes to measure there."""

    layout: Layout
    rate: str | None
    sizes: tuple[int, ...]
    name: str

    @classmethod
    def parse(cls, text: str, sizes: Sequence[int] = ()) -> Case:
        """Read `4x1@1gbit`, `5+1@1gbit`, or `4x1` for links without a limit."""
        shape, _, rate = text.partition("@")
        layout = Layout.parse(shape)
        if len(layout.ranks_on) < 2:
            raise SetupError(f"{text!r} has one host only: that is `bench/run host`")
        one_each = max(layout.ranks_on) == 1
        default = (MIB, 4 * MIB, 16 * MIB, 64 * MIB) if rate and one_each else (16 * MIB, 64 * MIB)
        return cls(layout, rate or None, tuple(sizes) or (default if rate else (64 * MIB,)), text)

    @property
    def one_rank_each(self) -> bool:
        """Whether no two ranks share a host."""
        return max(self.layout.ranks_on) == 1

    def floor_bytes(self, size: int) -> float:
        """Return the bytes that each host's link must carry each way for an allreduce."""
        hosts = len(self.layout.ranks_on)
        return 2 * size * (hosts - 1) / hosts


DEFAULT_CASES = ("4x1@1gbit", "8x1@200mbit", "2x2@1gbit", "2x4@1gbit", "5+1@1gbit", "4x1")


def multi_host(report: Report, ours: OurBinaries, python: Path, case: Case, rounds: int, seconds: float) -> None:
    """Measure one case and add it to the report."""
    visible = [BENCH, python.parent.parent, Path(sys.base_prefix), ours.ronde.parent, ours.probe.parent]
    with made_hosts(len(case.layout.ranks_on), case.rate, visible) as ground:
        figures, speed = _measure(ground, ours, python, case, rounds, seconds)
    title = f"{case.name} ({speed * 8 / 1e6:.4g} Mbit/s by one plain stream)"
    report.keep(title, figures)
    for aim in multi_host_aims(case.name, case.sizes, case.one_rank_each, case.rate is not None):
        if aim.measure is Measure.BYTES:
            _compare_bytes(report, aim, figures, case)
        elif aim.theirs == LINK:
            for size in aim.sizes:
                time = figures.best_or_typical(aim.ours, size)
                if time is not None:
                    report.rows.append(Row.judge(aim, size, time, case.floor_bytes(size) / speed * 1e6))
        else:
            report.compare(aim, figures)


def _measure(
    ground: MadeHosts, ours: OurBinaries, python: Path, case: Case, rounds: int, seconds: float
) -> tuple[Figures, float]:
    figures, speeds = Figures(), []
    for turn in range(1, rounds + 1):
        say(f"{case.name}, round {turn} of {rounds}: plain stream")
        speeds.append(jobs.stream_speed(ground, python, STREAM_SECONDS))
        say(f"{case.name}, round {turn} of {rounds}: {RONDE}")
        words = ["allreduce", "--via", "world", "--seconds", seconds, *case.sizes]
        figures.add(RONDE, jobs.run_probe(ground, case.layout, ours, words))
        say(f"{case.name}, round {turn} of {rounds}: {GLOO}")
        figures.add(GLOO, jobs.run_gloo(ground, case.layout, python, seconds, case.sizes))
    speeds.append(jobs.stream_speed(ground, python, STREAM_SECONDS))
    return figures, statistics.median(speeds)


def _compare_bytes(report: Report, aim: Aim, figures: Figures, case: Case) -> None:
    first_on_host = [place.rank for place in case.layout.places() if place.local_rank == 0]
    for size in aim.sizes:
        counts = [figures.sent_per_call(aim.ours, size, rank) for rank in first_on_host]
        sent = [count for count in counts if count is not None]
        if not sent:
            continue
        floor = case.floor_bytes(size)
        if aim.ours == RONDE and min(sent) < FEWEST_BYTES * floor:
            raise jobs.WrongPathError(
                f"{case.name}: a host sent {min(sent):.0f} bytes for each allreduce of {size}, but an honest one "
                f"sends at least {floor:.0f}: the rest went another way than through its link"
            )
        report.rows.append(Row.judge(aim, size, max(sent), floor))
