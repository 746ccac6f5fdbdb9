"""Times the allreduce of torch.distributed with Gloo on CUDA tensors, which it copies to the host and back.

    python -m gpu.gloo --rounds 7 float32:67108864

HOROVOD_RANK and HOROVOD_SIZE say which rank this is, and MASTER_ADDR and MASTER_PORT where ranks find each other.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from gpu import bursts
from gpu.stopwatch import the_device


class Gloo:
    """What ranks that share a GPU have without us, since NCCL refuses them."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.ranks = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
        dist.init_process_group("gloo", rank=self.rank, world_size=self.ranks)
        self._takes_tensors = True
        try:
            dist.all_reduce(torch.zeros(1, device=device))
        except RuntimeError:
            # Not built for CUDA: then the copies are ours to make, as a user would.
            self._takes_tensors = False

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest.item()

    def allreduce(self, tensor: Tensor, _name: str) -> None:
        """Average a tensor over all ranks, in place."""
        if self._takes_tensors:
            dist.all_reduce(tensor)
        else:
            on_host = tensor.cpu()
            dist.all_reduce(on_host)
            tensor.copy_(on_host)
        tensor.div_(self.ranks)

    def leave(self) -> NoReturn:
        """End this process once all ranks have measured.

        Nothing is taken down in order: destroying the process group can wait for ever on one rank after another has
        gone (seen with PyTorch 2.0), and everything has been printed.
        """
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    gpu = the_device()
    gloo = Gloo(gpu)
    bursts.main(gloo, gpu)
    gloo.leave()
