"""The work that the benchmark compares with tf.distribute is done right, and has the size of its aims.

The other work trains a network of Keras, which takes long to build; the benchmark itself checks its result and size.
"""

from __future__ import annotations

import json
import sys

from harness.aims import TAPE_STEP, TENSORFLOW_TRAINING
from ranks import REPOSITORY, launch

RANKS = 2


def test_steps_with_gradients_of_resnet_50_s_sizes_run_on_every_rank() -> None:
    command = [sys.executable, "-m", "training_tf.hvd", "--seconds", "0", "tape"]
    done = launch(RANKS, command, timeout=400.0, PYTHONPATH=str(REPOSITORY / "bench"), TF_CPP_MIN_LOG_LEVEL="2")
    assert done.status == 0, done.output
    for rank in range(RANKS):
        (line,) = [json.loads(line) for line in done.lines_of(rank) if line.startswith("{")]
        assert (line["rank"], line["work"]) == (rank, "tape")
        assert {aim.sizes for aim in TENSORFLOW_TRAINING if aim.section == TAPE_STEP} == {(line["bytes"],)}
        assert 0 < line["min_us"] <= line["median_us"] <= line["p90_us"]
        assert line["calls"] >= 5
