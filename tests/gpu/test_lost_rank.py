"""A rank that is killed in the middle of operations makes the others raise, and the GPU goes on working."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

import horovod.torch as hvd
from ranks import NO_KILL, launch, search_path

HERE = Path(__file__).parent
# Far less than until anybody gives up waiting for a rank, and far more than a busy machine needs.
SECONDS = 30.0


def loses_a_rank() -> None:
    """Run operations until a rank kills itself; the survivors say when they heard of it, and use the GPU."""
    # The launcher stops the survivors as well; they want to see the error first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder = Path(os.environ["FOLDER"])
    hvd.init()
    tensors = [torch.ones(1 << 20, device="cuda") for _ in range(8)]
    for turn in range(1_000_000):
        if hvd.rank() == 1 and turn == 100:
            (folder / "killed").write_text(repr(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            handles = [hvd.allreduce_async_(tensor, name=f"t{number}") for number, tensor in enumerate(tensors)]
            for handle in handles:
                hvd.synchronize(handle)
            tensors[0].sum().item()
        except hvd.HorovodInternalError as error:
            seen = time.monotonic()
            # Nothing of the lost rank may hold the device up: this stream, another, and all of them.
            with torch.cuda.stream(torch.cuda.Stream()):
                elsewhere = torch.arange(1000, device="cuda").sum().item()
            torch.cuda.synchronize()
            works = elsewhere == torch.arange(1000, device="cuda").sum().item() == 499_500
            (folder / f"{hvd.rank()}").write_text(f"{seen!r} {works} {error}")
            break


def test_survivors_raise_soon_and_the_gpu_is_usable() -> None:
    for size in (2, 4):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            program = "from test_lost_rank import loses_a_rank; loses_a_rank()"
            path = search_path(HERE, HERE.parent / "python")
            done = launch(size, [*NO_KILL, sys.executable, "-c", program], 120, FOLDER=name, PYTHONPATH=path)
            assert done.status != 0, done.output
            assert (folder / "killed").exists(), done.output
            killed = float((folder / "killed").read_text())
            for survivor in {*range(size)} - {1}:
                heard = folder / str(survivor)
                assert heard.exists(), f"rank {survivor} of {size} heard nothing\n{done.output}"
                seen, works, message = heard.read_text().split(" ", 2)
                assert float(seen) - killed < SECONDS, f"rank {survivor} heard of it after {float(seen) - killed} s"
                assert works == "True", message
                assert "rank 1" in message, message
        # And for those who come after: nothing of the job is left that would be in their way.
        assert torch.ones(3, device="cuda").sum().item() == 3.0
