"""Times torch.distributed's Gloo allreduce (f32, sum, in place), as one rank.

    python -m peers.gloo --seconds 0.5 SIZE_BYTES...

The rank, size and address come from the usual RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT; GLOO_SOCKET_IFNAME picks the interface.
"""

from __future__ import annotations

import argparse
import mmap

import torch
import torch.distributed as dist

from peers.timed import report


class Gloo:
    """The Gloo process group behind the interface that `timed` drives."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()

    def prepare(self, count: int, pattern: list[float], expected: list[float]) -> None:
        """Make the tensors of one size."""
        # Anonymous mappings start on a page; torch's own allocations do not.
        self.memory = mmap.mmap(-1, max(4 * count, mmap.PAGESIZE))
        self.tensor = torch.frombuffer(self.memory, dtype=torch.float32, count=count)
        self.pattern = torch.tensor(pattern).repeat(count // len(pattern) + 1)[:count]
        self.expected = torch.tensor(expected).repeat(count // len(expected) + 1)[:count]

    def fill(self) -> None:
        """Set the tensor to this rank's pattern."""
        self.tensor.copy_(self.pattern)

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def allreduce(self) -> None:
        """Sum the tensor over all ranks, in place."""
        dist.all_reduce(self.tensor)

    def is_expected(self, scale: float) -> bool:
        """Compare every element."""
        return torch.equal(self.tensor, self.expected * scale)

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest.item())


def main() -> None:
    """Measure the sizes on the command line."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, required=True)
    arguments.add_argument("sizes", type=int, nargs="+")
    options = arguments.parse_args()
    report(Gloo(), options.sizes, options.seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
