"""Which of a node's GPUs ranks find, by their local rank, as training scripts choose theirs. Needs root."""

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

from laptop import Command, Laptop
from testbed import wait_for

# Says which GPU it would train on, of how many; stays if it is told to.
CHOOSES = """
import os, signal, sys
import ronde
ronde.init()
given = os.environ["NVIDIA_VISIBLE_DEVICES"].split(",")
mine = given[ronde.local_rank()]
print("chose", os.environ["NODE_NAME"], mine, len(given), ronde.local_size(), flush=True)
assert "CUDA_VISIBLE_DEVICES" not in os.environ, "it would have to choose among fewer"
if "stay" in sys.argv:
    signal.pause()
"""


def chosen(command: Command) -> list[tuple[str, str, str, str]]:
    """Return what every rank has said: node, GPU, GPUs of its pod, and ranks there."""
    return re.findall(r"\] chose (\S+) (\S+) (\d+) (\d+)\n", command.output())


def test_each_rank_finds_a_gpu_of_its_own_by_its_local_rank_also_beside_another_job(
    laptop: Laptop, tmp_path: Path
) -> None:
    script = tmp_path / "chooses.py"
    script.write_text(CHOOSES)
    there = ["--node-selector", "kubernetes.io/hostname=node-1"]
    beside = laptop.start_run("beside", 2, "exec python chooses.py stay", "--script", script, *there)
    wait_for(lambda: f"both ranks to choose: {beside}", lambda: len(chosen(beside)) == 2)
    job = laptop.start_run("chooses", 6, "exec python chooses.py", "--script", script)
    assert job.end() == 0, job
    found = [*chosen(beside), *chosen(job)]
    assert Counter(node for node, *_ in found) == {"node-1": 2 + 3, "node-2": 3}, found
    assert len({(node, gpu) for node, gpu, *_ in found}) == 8, f"two ranks chose the same: {found}"
    # No pod sees more than its ranks use, nor fewer.
    assert [(given, ranks) for _, _, given, ranks in found] == [("2", "2")] * 2 + [("3", "3")] * 6, found
    beside.kill(signal.SIGINT)
