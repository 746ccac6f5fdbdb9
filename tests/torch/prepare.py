"""What a rank does before the checks of this folder."""

from __future__ import annotations

import torch


def once() -> None:
    """Leave the cores to the other ranks."""
    torch.set_num_threads(1)


def each() -> None:
    """Start every check from the same numbers, whatever ran before."""
    torch.manual_seed(1234)
