"""Times the same training steps without any exchange, as one of several processes that share the machine.

    python -m training.alone --seconds 2 WORK...

What a step takes beyond this is what the exchange costs. RANK and WORLD_SIZE say which process this is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.works import main


class Alone:
    """A rank that never meets the others, so only its own steps can be timed, not what ranks do together."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.ranks = int(os.environ["WORLD_SIZE"])

    def barrier(self) -> None:
        """Go on."""

    def maximum(self, value: float) -> float:
        """Return this rank's value."""
        return value

    def allreduce(self, tensor: Tensor) -> None:
        """Refuse: without other ranks there is no average."""
        raise NotImplementedError("only training steps can be timed without an exchange")

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """Refuse, as above."""
        self.allreduce(gradients[0])

    def exchange_each(self, tensors: Sequence[Tensor]) -> None:
        """Refuse, as above."""
        self.allreduce(tensors[0])

    def distribute(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Train by oneself."""
        return model, optimizer


if __name__ == "__main__":
    main(Alone)
