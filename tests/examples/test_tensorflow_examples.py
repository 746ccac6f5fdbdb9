"""The TensorFlow examples learn on several ranks what one rank learns from the same batches, but for rounding.

Every rank of an example draws weights of its own, so these comparisons fail when weights are not broadcast, when
gradients are not averaged, and when ranks do not share the batch as they should.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from figures import figures
from ranks import REPOSITORY, Finished, launch

RANKS = 4
BATCH = 24
LEARNING = ("--epochs", "3", "--lr", "0.1")
# TensorFlow takes its time to be imported by ranks that share two cores.
TIMEOUT_SECONDS = 400.0


def run(ranks: int, script: str, *flags: str) -> Finished:
    command = [sys.executable, str(REPOSITORY / "examples" / script), "--no-cuda", *flags]
    done = launch(ranks, command, TIMEOUT_SECONDS, TF_CPP_MIN_LOG_LEVEL="2")
    assert done.status == 0, done.output
    return done


@functools.cache
def alone(script: str) -> Finished:
    """Learn on one rank, once for all tests."""
    return run(1, script, *LEARNING, "--batch-size", str(BATCH))


@pytest.mark.parametrize(("script", "saved"), [("tensorflow2_mnist.py", "digits-*"), ("tensorflow_mnist.py", "model*")])
def test_digits_are_learned_alike_by_four_ranks_and_by_one_and_saved(script: str, saved: str, tmp_path: Path) -> None:
    flags = ["--batch-size", str(BATCH // RANKS), "--checkpoint-dir", str(tmp_path)]
    together = run(RANKS, script, *LEARNING, *flags)
    # Rounding grows from step to step: what differs in the seventh digit after an epoch may in the third after two.
    for epoch, tolerance in ((0, 1e-4), (1, 2e-2)):
        for name in ("loss", "test loss"):
            ours, theirs = figures(together, name)[epoch], figures(alone(script), name)[epoch]
            assert ours == pytest.approx(theirs, rel=tolerance), f"{name} after {epoch + 1} epochs"
    assert figures(together, "accuracy")[-1] > 80.0
    assert list(tmp_path.glob(f"{saved}.index"))


def test_gradients_that_travel_as_float16_teach_the_same() -> None:
    script = "tensorflow2_mnist.py"
    together = run(2, script, *LEARNING, "--batch-size", str(BATCH // 2), "--fp16-allreduce", "--epochs", "1")
    assert figures(together, "loss") == pytest.approx(figures(alone(script), "loss")[:1], rel=2e-2)


def test_the_synthetic_benchmark_counts_images_and_leaves_all_ranks_with_the_same_weights() -> None:
    size = ["--model", "MobileNet", "--image-size", "32", "--batch-size", "2"]
    pace = ["--num-warmup-batches", "1", "--num-iters", "2", "--num-batches-per-iter", "1"]
    done = run(2, "tensorflow2_synthetic_benchmark.py", *size, *pace)
    (each,) = figures(done, "Img/sec per CPU:")
    (total,) = figures(done, r"Total img/sec on 2 CPU\(s\):")
    assert total == pytest.approx(2 * each, rel=0.05)
    assert len(figures(done, r"Iter #\d:")) == 2
    assert "Weights: the same on all ranks" in done.lines_of(0)
