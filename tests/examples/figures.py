"""Reads the numbers that examples print."""

from __future__ import annotations

import re

from ranks import Finished


def figures(done: Finished, name: str) -> list[float]:
    """Return the numbers that rank 0 printed under a name, in order; names stand apart by two spaces."""
    lines = "\n".join(done.lines_of(0))
    found = [float(number) for number in re.findall(rf"(?:^|  ){name} ([0-9.]+)", lines, re.MULTILINE)]
    assert found, done.output
    return found
