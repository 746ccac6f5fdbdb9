"""Times training through `import horovod.tensorflow`, as one rank.

    python -m training_tf.hvd --seconds 2 WORK...

The job comes from the environment, as for any script.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from training_tf.works import Step, main


class Horovod:
    """Ordinary variables on every rank, and a tape that averages what it computed."""

    def __init__(self) -> None:
        hvd.init()
        self.rank = hvd.rank()
        self.ranks = hvd.size()

    def barrier(self) -> None:
        """Wait for all ranks."""
        hvd.allreduce(tf.zeros(()), name="barrier")

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        values = hvd.allgather(tf.constant([value], tf.float64), name="maximum")
        return float(tf.reduce_max(values).numpy())

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Ask for nothing."""
        return contextlib.nullcontext()

    def step(self, loss_of: Step, variables: Sequence[Any], optimizer: Any) -> Step:
        """Wrap the tape."""

        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of()
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables))
            return loss

        return step

    def start_alike(self, variables: Sequence[tf.Variable]) -> None:
        """Send rank 0's values to the others."""
        hvd.broadcast_variables(variables, root_rank=0)


if __name__ == "__main__":
    main(Horovod)
    hvd.shutdown()
