"""The PyTorch examples learn on several ranks what one rank learns from the same batches, but for rounding.

Every rank of an example draws weights of its own, so these comparisons fail when weights are not broadcast, when
gradients are not averaged, and when ranks do not share the batch as they should.
"""

from __future__ import annotations

import sys

import pytest

from figures import figures
from ranks import REPOSITORY, Finished, launch

RANKS = 4
TIMEOUT_SECONDS = 240.0


def run(ranks: int, script: str, *flags: str) -> Finished:
    command = [sys.executable, str(REPOSITORY / "examples" / script), "--no-cuda", *flags]
    done = launch(ranks, command, TIMEOUT_SECONDS)
    assert done.status == 0, done.output
    return done


def test_digits_are_learned_alike_by_four_ranks_and_by_one() -> None:
    flags = ["--epochs", "4", "--lr", "0.1", "--batch-size"]
    alone = run(1, "torch_digits.py", *flags, "24")
    together = run(RANKS, "torch_digits.py", *flags, "6")
    # Rounding grows from step to step: what differs in the seventh digit after an epoch may in the third after two.
    for epoch, tolerance in ((0, 1e-4), (1, 2e-2)):
        for name in ("loss", "test loss"):
            ours, theirs = figures(together, name)[epoch], figures(alone, name)[epoch]
            assert ours == pytest.approx(theirs, rel=tolerance), f"{name} after {epoch + 1} epochs"
    assert figures(together, "accuracy")[-1] > 80.0


def test_gradients_that_travel_as_float16_and_divided_before_the_sum_teach_the_same() -> None:
    flags = ["--epochs", "1", "--batch-size"]
    alone = run(1, "torch_digits.py", *flags, "24")
    together = run(2, "torch_digits.py", *flags, "12", "--fp16-allreduce", "--gradient-predivide-factor", "2")
    assert figures(together, "loss") == pytest.approx(figures(alone, "loss"), rel=2e-2)


def test_adasum_learns_the_digits() -> None:
    flags = ["--epochs", "4", "--lr", "0.2", "--batch-size", "12", "--use-adasum"]
    losses = figures(run(2, "torch_digits.py", *flags), "loss")
    assert losses[-1] < losses[0] / 2


def test_a_language_model_learns_alike_on_four_ranks_and_on_one() -> None:
    size = ["--context", "32", "--width", "32", "--write", "20", "--lr", "0.01"]
    pace = ["--steps", "20", "--warmup-steps", "5", "--log-interval", "5", "--batch-size"]
    alone = run(1, "torch_language_model.py", *size, *pace, "16")
    together = run(RANKS, "torch_language_model.py", *size, *pace, "4")
    losses = figures(alone, "loss")
    assert figures(together, "loss") == pytest.approx(losses, rel=1e-3)
    assert len(losses) == 4
    assert losses[-1] < losses[0]


def test_the_synthetic_benchmark_counts_images_and_learns_alike_on_four_ranks_and_on_one() -> None:
    size = ["--model", "resnet10", "--image-size", "32", "--sync-batch-norm"]
    pace = ["--num-warmup-batches", "1", "--num-iters", "2", "--num-batches-per-iter", "1", "--batch-size"]
    alone = run(1, "torch_synthetic_benchmark.py", *size, *pace, "8")
    together = run(RANKS, "torch_synthetic_benchmark.py", *size, *pace, "2")
    assert figures(together, "Loss:") == pytest.approx(figures(alone, "Loss:"), rel=1e-2)
    (each,) = figures(together, "Img/sec per CPU:")
    (total,) = figures(together, r"Total img/sec on 4 CPU\(s\):")
    assert total == pytest.approx(RANKS * each, rel=0.05)
    assert len(figures(together, r"Iter #\d:")) == 2
