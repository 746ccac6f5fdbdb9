"""What a rank does before the checks of this folder."""

from __future__ import annotations

import tensorflow as tf


def once() -> None:
    """Leave the cores to the other ranks."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)


def each() -> None:
    """Start every check from the same numbers, whatever ran before."""
    tf.random.set_seed(1234)
