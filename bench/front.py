"""Times `ronde.allreduce_` as a Python script calls it (f32, sum, NumPy), as one rank.

    python -m front --seconds 0.5 SIZE_BYTES...

The job comes from the environment, as for any script.
"""

from __future__ import annotations

import argparse
import mmap

import numpy

import ronde
from peers.timed import report


class Front:
    """The Python front behind the interface that `timed` drives."""

    def __init__(self) -> None:
        ronde.init()
        self.rank = ronde.rank()
        self.ranks = ronde.size()

    def prepare(self, count: int, pattern: list[float], expected: list[float]) -> None:
        """Make the arrays of one size."""
        # Anonymous mappings start on a page; NumPy's own allocations do not.
        self.memory = mmap.mmap(-1, max(4 * count, mmap.PAGESIZE))
        self.tensor = numpy.frombuffer(self.memory, numpy.float32, count)
        self.pattern = numpy.resize(numpy.array(pattern, numpy.float32), count)
        self.expected = numpy.resize(numpy.array(expected, numpy.float32), count)

    def fill(self) -> None:
        """Set the array to this rank's pattern."""
        self.tensor[:] = self.pattern

    def barrier(self) -> None:
        """Wait for all ranks."""
        ronde.barrier()

    def allreduce(self) -> None:
        """Sum the array over all ranks, in place."""
        ronde.allreduce_(self.tensor, op=ronde.Sum)

    def is_expected(self, scale: float) -> bool:
        """Compare every element."""
        return numpy.array_equal(self.tensor, self.expected * numpy.float32(scale))

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        return float(ronde.allreduce(numpy.array([value]), op=ronde.Max)[0])


def main() -> None:
    """Measure the sizes on the command line."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, required=True)
    arguments.add_argument("sizes", type=int, nargs="+")
    options = arguments.parse_args()
    report(Front(), options.sizes, options.seconds)
    ronde.shutdown()


if __name__ == "__main__":
    main()
