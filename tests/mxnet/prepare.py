"""What a rank does before the checks of this folder."""

from __future__ import annotations

import os

# Leave the cores to the other ranks; MXNet reads this when it is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import mxnet as mx
import numpy as np


def once() -> None:
    """Have nothing more to do than what importing this did."""


def each() -> None:
    """Start every check from the same numbers, whatever ran before."""
    mx.nd.waitall()
    mx.random.seed(1234)
    np.random.seed(1234)
