"""Training with TensorFlow: our Horovod front beside tf.distribute, and what importing our front costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness import jobs
from harness.aims import (
    IMPORT,
    IMPORT_AIM,
    MIRRORED,
    NO_EXCHANGE,
    RONDE,
    TENSORFLOW,
    TENSORFLOW_SECTIONS,
    TENSORFLOW_TRAINING,
)
from harness.environment import OurBinaries, say
from harness.figures import Figures, one_launch
from harness.ground import Ground, Layout, this_machine
from harness.report import Report
from harness.suite import Suite, Tool

SUITE = Suite(TENSORFLOW_SECTIONS, TENSORFLOW_TRAINING)


def training(
    report: Report, ours: OurBinaries, python: Path, works: Sequence[str], ranks: int, rounds: int, seconds: float
) -> None:
    """Measure these works with so many ranks, and add what the aims compare to the report."""
    with this_machine() as ground:
        figures = SUITE.measure(_tools(ground, ours, python, ranks, seconds), works, rounds)
    SUITE.add(report, figures, works, ranks)


def _tools(ground: Ground, ours: OurBinaries, python: Path, ranks: int, seconds: float) -> dict[str, Tool]:
    layout = Layout((ranks,))

    def words(module: str, work: str) -> list[object]:
        return [python, "-m", module, "--seconds", seconds, work]

    def workers(who: str, module: str) -> Tool:
        return lambda work: jobs.run_workers(who, ground, layout, words(module, work))

    return {
        RONDE: lambda work: jobs.run_ronde(ground, layout, ours, words("training_tf.hvd", work)),
        MIRRORED: workers(MIRRORED, "training_tf.mirrored"),
        NO_EXCHANGE: workers(NO_EXCHANGE, "training_tf.alone"),
    }


def imports(report: Report, ours: OurBinaries, python: Path, rounds: int) -> None:
    """Measure in new processes what importing our front adds to importing TensorFlow."""
    figures = Figures()
    with this_machine() as ground:
        # The first process writes compiled modules, as happens once after an installation, and is not counted.
        for turn in range(rounds + 1):
            say(f"{IMPORT}, process {turn + 1} of {rounds + 1}")
            (line,) = jobs.run_alone(ground, ours, [python, "-m", "training_tf.imports"])
            if turn > 0:
                figures.add(RONDE, [one_launch(0, line["added_seconds"])])
                figures.add(TENSORFLOW, [one_launch(0, line["framework_seconds"])])
    report.keep(IMPORT, figures)
    report.compare(IMPORT_AIM, figures)
