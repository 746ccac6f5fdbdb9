"""What a rank does before the checks of this folder.

``RONDE_TEST_DEVICE=cuda`` makes the checks work on the GPU: tensors that they make without saying where are there.
"""

from __future__ import annotations

import os

import torch

DEVICE = torch.device(os.environ.get("RONDE_TEST_DEVICE", "cpu"))


def once() -> None:
    """Leave the cores to the other ranks, and work on the device that was asked for."""
    torch.set_num_threads(1)
    if DEVICE.type != "cpu":
        torch.set_default_device(DEVICE)


def each() -> None:
    """Start every check from the same numbers, whatever ran before."""
    torch.manual_seed(1234)
