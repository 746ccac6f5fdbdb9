"""Holds a stream of the GPU until the host lets it go on, so that tests need no kernels that take "long enough".

PyTorch has nothing of the sort. CUDA's driver has: a stream can wait for a number in memory that the host writes.
While a stream is held nothing may wait for the whole device, and CUDA does so when it loads a kernel for the first
time. So what happens behind a gate is rehearsed with an open one::

    for gate in rehearsed():
        with gate:
            tensor.add_(1)
            assert gate.holds(passed())
            gate.open()
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import TracebackType

import torch

_AT_LEAST = 0


class Gate:
    """Closes the current stream from where its block begins, until ``open`` is called or the block ends."""

    def __init__(self, closed: bool) -> None:
        self._closed = closed
        # Pinned memory has the same address on the host and on the GPU.
        self._number = torch.full((1,), int(not closed), dtype=torch.int32, device="cpu", pin_memory=True)

    def __enter__(self) -> Gate:
        wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
        wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
        status = wait(torch.cuda.current_stream().cuda_stream, self._number.data_ptr(), 1, _AT_LEAST)
        if status != 0:
            raise RuntimeError(f"cuStreamWaitValue32 returned {status}")
        return self

    def holds(self, event: torch.cuda.Event) -> bool:
        """Tell whether an event behind the gate has not come yet; in a rehearsal it may."""
        return not self._closed or not event.query()

    def holds_operation(self, is_over: bool) -> bool:
        """Tell whether an operation behind the gate goes on; in a rehearsal it may be over."""
        return not self._closed or not is_over

    def open(self) -> None:
        """Let the stream go on."""
        self._number.fill_(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()
        # The number must be there until the stream has read it.
        torch.cuda.synchronize()


def rehearsed() -> Iterator[Gate]:
    """Yield a gate that is open, and one that is closed."""
    yield Gate(closed=False)
    yield Gate(closed=True)


def passed(stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
    """Return an event in a stream, or the current one; ``query`` tells whether the stream has come that far."""
    event = torch.cuda.Event()
    event.record(stream or torch.cuda.current_stream())
    return event
