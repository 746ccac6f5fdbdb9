"""Times what is given to a GPU's stream: between two events in the stream, and not by the clock of the host.

On the CPU, where everything is over when it returns, the clock of the host is as good; so the programs here can be
tried without a GPU.
"""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Runs from `start` to `stop` in the current stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._on_gpu else []
        self._started = 0.0

    def settle(self) -> None:
        """Wait for what the stream was given so far."""
        if self._on_gpu:
            torch.cuda.current_stream().synchronize()

    def start(self) -> None:
        """Begin at what the stream is given next."""
        if self._on_gpu:
            self._events[0].record()
        else:
            self._started = time.perf_counter()

    def stop(self) -> float:
        """Wait for what the stream was given so far, and return the seconds that passed on the device."""
        if not self._on_gpu:
            return time.perf_counter() - self._started
        start, end = self._events
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def the_device() -> torch.device:
    """Return the GPU that all ranks share, made current."""
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)
