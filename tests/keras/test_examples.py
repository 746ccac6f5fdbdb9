"""The Keras examples learn on two ranks as well as on one, and go on from a checkpoint."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from trainings import BACKEND

from ranks import REPOSITORY, Finished, launch

TIMEOUT_SECONDS = 400.0


def run(ranks: int, script: str, *flags: str) -> Finished:
    done = launch(ranks, [sys.executable, str(REPOSITORY / "examples" / script), *flags], TIMEOUT_SECONDS)
    assert done.status == 0, done.output
    return done


def accuracy(done: Finished) -> float:
    [found] = re.findall(r"^test loss .* accuracy ([0-9.]+)%", "\n".join(done.lines_of(0)), re.MULTILINE)
    return float(found)


def test_digits_are_learned_and_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    folder = ["--checkpoint-dir", str(tmp_path)]
    first = run(2, "keras_digits.py", "--epochs", "2", *folder)
    assert accuracy(first) > 80.0
    more = run(2, "keras_digits.py", "--epochs", "4", "--fp16-allreduce", *folder)
    # Rank 0 loads the model and the other ranks build one; all have what rank 0 has loaded.
    assert [line.split("/")[0].split()[1] for line in more.lines_of(0) if line.startswith("epoch")] == ["3", "4"]
    assert accuracy(more) > max(90.0, accuracy(first) - 3.0)


if BACKEND == "tensorflow":

    def test_digits_are_learned_with_tf_keras() -> None:
        flags = ["--no-cuda", "--epochs", "4", "--lr", "0.002", "--warmup-epochs", "1"]
        assert accuracy(run(2, "tensorflow2_keras_mnist.py", *flags)) > 85.0
