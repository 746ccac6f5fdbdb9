"""The MXNet examples learn on two ranks what one rank learns from the same batches, but for rounding.

Every rank of an example draws weights of its own, so these comparisons fail when weights are not broadcast, when
gradients are not averaged, and when ranks do not share the batch as they should.
"""

from __future__ import annotations

import re
import sys

import pytest

from ranks import REPOSITORY, Finished, launch

TIMEOUT_SECONDS = 240.0


def run(ranks: int, script: str, *flags: str) -> Finished:
    command = [sys.executable, str(REPOSITORY / "examples" / script), "--no-cuda", *flags]
    done = launch(ranks, command, TIMEOUT_SECONDS, OMP_NUM_THREADS="1")
    assert done.status == 0, done.output
    return done


def figures(done: Finished, name: str) -> list[float]:
    """Return the numbers that rank 0 printed under a name, in order; names stand apart by two spaces."""
    lines = "\n".join(done.lines_of(0))
    found = [float(number) for number in re.findall(rf"(?:^|  ){name} ([0-9.]+)", lines, re.MULTILINE)]
    assert found, done.output
    return found


def learned_alike(script: str, flags: list[str], tolerance: float) -> None:
    alone = run(1, script, "--batch-size", "64")
    together = run(2, script, "--batch-size", "32", *flags)
    # Rounding grows from step to step.
    assert figures(together, "loss")[:2] == pytest.approx(figures(alone, "loss")[:2], rel=tolerance)
    assert figures(together, "accuracy")[-1] > 93.0


def test_the_gluon_example() -> None:
    learned_alike("mxnet_gluon_mnist.py", ["--num-groups", "3", "--gradient-predivide-factor", "2"], 1e-3)


def test_the_gluon_example_with_gradients_in_float16() -> None:
    losses = figures(run(2, "mxnet_gluon_mnist.py", "--fp16-allreduce", "--epochs", "3"), "loss")
    assert losses[-1] < losses[0] / 2


def test_the_module_example() -> None:
    learned_alike("mxnet_mnist.py", ["--gradient-predivide-factor", "2"], 1e-3)
