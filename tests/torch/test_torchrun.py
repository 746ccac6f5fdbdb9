"""Training scripts that ``torchrun`` starts: ranks from its variables, and a restart after a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ranks import Finished

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
import horovod.torch as hvd

hvd.init()
total = hvd.allreduce(torch.full((4,), hvd.rank() + 1.0), op=hvd.Sum)
assert total.tolist() == [hvd.size() * (hvd.size() + 1) / 2] * 4, total
if "RIVAL" in os.environ:
    dist.init_process_group("gloo")
    dist.all_reduce(total)
if os.environ["TORCHELASTIC_RESTART_COUNT"] < os.environ.get("RESTARTS", "0") and hvd.rank() == 1:
    sys.exit(3)
hvd.barrier()
# One write, since torchrun passes the output of all ranks on as it comes.
place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
sys.stdout.write(f"place {place} restart {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n")
"""


def torchrun(folder: Path, *options: str, **variables: str) -> Finished:
    """Run the script on two ranks."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options, script]
    environment = {**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout)


def places(done: Finished) -> list[str]:
    """Return what the ranks said about themselves."""
    assert done.status == 0, done.output
    return sorted(line for line in done.output.splitlines() if line.startswith("place"))


def test_ranks_meet_beside_the_store_that_torch_itself_uses(tmp_path: Path) -> None:
    done = torchrun(tmp_path, RIVAL="1")
    assert places(done) == [f"place ({rank}, 2, {rank}, 2, 0, 1) restart 0" for rank in range(2)]
    assert list((tmp_path / ".ronde" / "jobs").iterdir()) == []


def test_a_job_that_torchrun_starts_anew_meets_anew(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "--max-restarts=1", RESTARTS="1")
    assert places(done) == [f"place ({rank}, 2, {rank}, 2, 0, 1) restart 1" for rank in range(2)]
