"""Times our allreduce of ranks that share a GPU, as one of them, and on the first rank what the GPU itself takes.

    python -m gpu.ours --rounds 7 float32:4 float32:67108864

The job comes from the environment, as for any script; RONDE_GPU_PATH says which way tensors take.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

import horovod.torch as hvd
from gpu import baseline, bursts
from gpu.stopwatch import the_device


class Ours:
    """Blocking calls with a name, which return as soon as the order in the stream is set."""

    def __init__(self) -> None:
        hvd.init()
        self.rank = hvd.rank()
        self.ranks = hvd.size()

    def barrier(self) -> None:
        """Wait for all ranks."""
        hvd.barrier()

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        return hvd.allgather(torch.tensor([value], dtype=torch.float64), name="maximum").max().item()

    def allreduce(self, tensor: Tensor, name: str) -> None:
        """Average a tensor over all ranks, in place."""
        hvd.allreduce_(tensor, name=name)


def print_baseline(library: Ours, device: torch.device) -> None:
    """Measure what the device takes on the first rank; the others keep off it meanwhile."""
    if library.rank == 0:
        copied, launched = baseline.copy_seconds(device), baseline.launch_seconds(device)
        print(json.dumps({"work": "copy", "bytes": baseline.COPIED_BYTES, "median_us": copied * 1e6}), flush=True)
        print(json.dumps({"work": "launch", "bytes": 0, "median_us": launched * 1e6}), flush=True)
    library.barrier()


if __name__ == "__main__":
    gpu, ours = the_device(), Ours()
    print_baseline(ours, gpu)
    bursts.main(ours, gpu)
    hvd.shutdown()
