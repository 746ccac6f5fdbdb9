"""Times training through `import horovod.torch`, as one rank: ours, or upstream's where that is what gets imported.

    python -m training.hvd --seconds 2 WORK...

The job comes from the environment, as for any script.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

import horovod.torch as hvd
from training.works import main


class Horovod:
    """Named collectives, all under way at once; how they are packed is the library's business."""

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

    def allreduce(self, tensor: Tensor) -> None:
        """Average one tensor over all ranks, in place."""
        hvd.allreduce_(tensor, name="one")

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """Average the gradients, in place."""
        self.exchange_each(gradients)

    def exchange_each(self, tensors: Sequence[Tensor]) -> None:
        """Start a collective for each tensor, then wait for all."""
        handles = [hvd.allreduce_async_(tensor, name=f"tensor.{index}") for index, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    def distribute(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Start from the same weights and wrap the optimizer."""
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


if __name__ == "__main__":
    main(Horovod)
    hvd.shutdown()
