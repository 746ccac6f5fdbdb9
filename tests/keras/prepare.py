"""What a rank does before the checks of this folder."""

from __future__ import annotations

import os

import keras


def once() -> None:
    """Leave the cores to the other ranks."""
    backend = os.environ["KERAS_BACKEND"]
    if backend == "torch":
        import torch

        torch.set_num_threads(1)
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)


def each() -> None:
    """Start every check from the same numbers, whatever ran before."""
    keras.utils.set_random_seed(1234)
