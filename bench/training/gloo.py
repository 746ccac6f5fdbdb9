"""Times training with torch.distributed and Gloo, as one rank: collectives by hand, and DistributedDataParallel.

    python -m training.gloo --seconds 2 WORK...

The rank, size and address come from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.works import main

# What DistributedDataParallel packs together unless told otherwise.
BUCKET_BYTES = 25 << 20


class Gloo:
    """What one gets without Horovod: buckets for gradients, and one collective a tensor for the rest."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self.buckets: list[Tensor] = []

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest.item()

    def allreduce(self, tensor: Tensor) -> None:
        """Average one tensor over all ranks, in place."""
        dist.all_reduce(tensor)
        tensor.div_(self.ranks)

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """Copy gradients into buckets, reduce those that are full while the next fills, and copy back."""
        packed = list(_packed(gradients))
        if not self.buckets:
            self.buckets = [torch.empty(sum(tensor.numel() for tensor in part)) for part in packed]
        waiting = []
        for bucket, part in zip(self.buckets, packed):
            pieces = bucket.split([tensor.numel() for tensor in part])
            for piece, tensor in zip(pieces, part):
                torch.mul(tensor.view(-1), 1.0 / self.ranks, out=piece)
            waiting.append((dist.all_reduce(bucket, async_op=True), pieces, part))
        for work, pieces, part in waiting:
            work.wait()
            for piece, tensor in zip(pieces, part):
                tensor.view(-1).copy_(piece)

    def exchange_each(self, tensors: Sequence[Tensor]) -> None:
        """Start a collective for each tensor, then wait for all."""
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work, tensor in zip(works, tensors):
            work.wait()
            tensor.div_(self.ranks)

    def distribute(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Wrap the model; it starts from rank 0's weights by itself."""
        return DistributedDataParallel(model), optimizer


def _packed(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Split tensors into runs that fill a bucket each."""
    part: list[Tensor] = []
    size = 0
    for tensor in tensors:
        part.append(tensor)
        size += tensor.numel() * tensor.element_size()
        if size >= BUCKET_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


if __name__ == "__main__":
    main(Gloo)
    dist.destroy_process_group()
