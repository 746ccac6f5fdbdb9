"""Training with PyTorch: our Horovod front beside torch.distributed and, where it was built, upstream Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness import jobs
from harness.aims import DDP, GLOO, HOROVOD, NO_EXCHANGE, RONDE, TRAINING, TRAINING_SECTIONS
from harness.environment import OurBinaries, UpstreamHorovod
from harness.ground import Ground, Layout, this_machine
from harness.report import Report
from harness.suite import Suite, Tool

SUITE = Suite(TRAINING_SECTIONS, TRAINING)


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
        figures = SUITE.measure(tools, works, rounds)
    SUITE.add(report, figures, works, ranks)
    if upstream is None:
        report.notes.append("upstream Horovod was left out: make bench-horovod compiles and measures it too")


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
