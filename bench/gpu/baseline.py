"""What the GPU itself takes: for a plain copy of its memory, and for a kernel that does next to nothing."""

from __future__ import annotations

import statistics
import time

import torch

from gpu.stopwatch import Stopwatch

COPIED_BYTES = 1 << 30
COPIES = 20
ROUNDS = 7
LAUNCHES = 500


def copy_seconds(device: torch.device, size: int = COPIED_BYTES) -> float:
    """Return how long it takes to copy `size` bytes on the device, as the median of several bursts."""
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    stopwatch = Stopwatch(device)
    taken = []
    # The first is to warm up.
    for _ in range(1 + ROUNDS):
        stopwatch.start()
        for _ in range(COPIES):
            target.copy_(source)
        taken.append(stopwatch.stop() / COPIES)
    return statistics.median(taken[1:])


def launch_seconds(device: torch.device) -> float:
    """Return how long the host waits for a kernel of one element: launch, run, and the event behind it."""
    element = torch.zeros(1, device=device)
    event = torch.cuda.Event() if device.type == "cuda" else None
    taken = []
    for _ in range(LAUNCHES):
        start = time.perf_counter()
        element.add_(1.0)
        if event is not None:
            event.record()
            event.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
