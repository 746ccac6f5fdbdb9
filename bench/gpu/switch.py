"""Times how long a GPU takes to change between two processes: kernels of both in turn, ordered by the GPU itself.

    ronde run -np 2 python -m gpu.switch --rounds 7

Both processes share a word of host memory. Each gives its stream, many times over: wait until the word says that it is
your turn, run a kernel of one element, write that it is the other's turn. Nobody's turn comes before both have
submitted all of it, so the host has no part in what is measured. The same without kernels is what handing over by
itself takes; the GPU need not change for that. What kernels add is a change, and a kernel that does next to nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import horovod.torch as hvd
from gpu.stopwatch import Stopwatch, the_device
from training.timing import times

TURNS = 100
"""Rounds that are submitted at once; a stream takes about a thousand commands before the host has to wait."""
SHARED_FOLDER = "/dev/shm"
# Flags of CUDA's driver: memory that kernels of this process may use; a word that is at least so large.
DEVICEMAP, AT_LEAST, PLAIN = 2, 0, 0


class DriverError(Exception):
    """A function of CUDA's driver failed."""


class Word:
    """A word of host memory that two processes share, as their streams see it."""

    def __init__(self, path: Path) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._word = ctypes.c_uint32.from_buffer(self._memory)
        here = ctypes.addressof(self._word)
        self._call(
            "cuMemHostRegister_v2", ctypes.c_void_p(here), ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_uint(DEVICEMAP)
        )
        self._address = ctypes.c_uint64()
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(self._address), ctypes.c_void_p(here), ctypes.c_uint(0))

    def set(self, value: int) -> None:
        """Write the word at once, from the host."""
        self._word.value = value

    def wait(self, value: int) -> None:
        """Have the current stream wait until the word is at least so large."""
        self._on_stream("cuStreamWaitValue32_v2", value, AT_LEAST)

    def write(self, value: int) -> None:
        """Have the current stream write the word."""
        self._on_stream("cuStreamWriteValue32_v2", value, PLAIN)

    def _on_stream(self, name: str, value: int, flags: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._call(name, stream, self._address, ctypes.c_uint32(value), ctypes.c_uint(flags))

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise DriverError(f"{name} returned {status}")


def shared_file() -> Path:
    """Return a file in memory that the first rank has made for both."""
    name = ""
    if hvd.rank() == 0:
        descriptor, name = tempfile.mkstemp(prefix="ronde-switch-", dir=SHARED_FOLDER)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        os.close(descriptor)
    return Path(hvd.broadcast_object(name, root_rank=0))


class Turns:
    """Two ranks that take turns, again and again; the word only grows."""

    def __init__(self, word: Word, device: torch.device) -> None:
        self._word, self._device = word, device
        # The word as it is between two measurements.
        self._next = 0

    def seconds(self, work: Callable[[], object]) -> float:
        """Return how long a change takes, with some work between two of them."""
        stopwatch, begin, mine = Stopwatch(self._device), self._next, self._next + 1 + hvd.rank()
        for turn in range(TURNS):
            self._word.wait(mine + 2 * turn)
            if turn == 0:
                stopwatch.start()
            work()
            self._word.write(mine + 2 * turn + 1)
        hvd.barrier()
        if hvd.rank() == 0:
            self._word.set(begin + 1)
        self._next = begin + 2 * TURNS + 1
        # From the beginning of the first turn to the end of the last, the other has one turn less.
        seconds = stopwatch.stop() / (2 * TURNS - 1)
        hvd.barrier()
        return seconds


def main() -> None:
    """Measure with kernels and without, in turns, and print a line for each."""
    parser = argparse.ArgumentParser(description="Time changes of a GPU between two processes, as one of them.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    device = the_device()
    hvd.init()
    if hvd.size() != 2:
        raise SystemExit(f"two ranks take turns, not {hvd.size()}")
    # First something on the device: the driver wants a context, and the kernel must be there before a stream is held.
    element = torch.zeros(1, device=device)
    element.add_(1.0)
    torch.cuda.synchronize()
    path = shared_file()
    word = Word(path)
    hvd.barrier()
    if hvd.rank() == 0:
        path.unlink()
    turns = Turns(word, device)
    works: dict[str, Callable[[], object]] = {"kernels": lambda: element.add_(1.0), "handover": lambda: None}
    taken: dict[str, list[float]] = {name: [] for name in works}
    # The first round is to warm up.
    for number in range(1 + rounds):
        for name, work in works.items():
            seconds = turns.seconds(work)
            if number > 0:
                taken[name].append(seconds)
    for name, seconds_of in taken.items():
        line = {"work": "switch", "case": name, "bytes": 0, "calls": rounds * TURNS, **times(seconds_of)}
        print(json.dumps(line), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
