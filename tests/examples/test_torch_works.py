"""The works that the training benchmark times with PyTorch are done right, and have the sizes of its aims."""

from __future__ import annotations

import json
import runpy
import sys
from typing import Any

from harness.aims import TRAINING, TRAINING_SECTIONS
from ranks import REPOSITORY, launch
from training import shapes

RANKS = 2


def lines_of(works: list[str]) -> list[dict[str, Any]]:
    """Do the works for as short as they go; wrong results fail there."""
    command = [sys.executable, "-m", "training.hvd", "--seconds", "0", *works]
    done = launch(RANKS, command, timeout=240.0, PYTHONPATH=str(REPOSITORY / "bench"))
    assert done.status == 0, done.output
    # Warnings come on the same lines: a thousand names are nearly as many as the engine remembers.
    return [json.loads(line) for rank in range(RANKS) for line in done.lines_of(rank) if line.startswith("{")]


def test_every_work_runs_on_every_rank_with_the_size_of_its_aims() -> None:
    lines = lines_of(list(TRAINING_SECTIONS))
    assert [(line["rank"], line["work"]) for line in lines] == [
        (rank, work) for rank in range(RANKS) for work in TRAINING_SECTIONS
    ]
    for line in lines:
        section = TRAINING_SECTIONS[line["work"]]
        assert {aim.sizes for aim in TRAINING if aim.section == section} == {(line["bytes"],)}
        assert 0 < line["min_us"] <= line["median_us"] <= line["p90_us"]
        assert line["calls"] == 1 if line["work"] == "waiting" else line["calls"] >= 5


def test_the_shapes_that_other_frameworks_use_are_those_of_the_network() -> None:
    network = runpy.run_path(str(REPOSITORY / "examples" / "models.py"))["resnet"](50)
    assert shapes.resnet50() == [tuple(parameter.shape) for parameter in network.parameters()]
