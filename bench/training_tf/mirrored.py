"""Times training with tf.distribute.MultiWorkerMirroredStrategy, as one worker.

    python -m training_tf.mirrored --seconds 2 WORK...

The workers' addresses, and which of them this is, come from TF_CONFIG. How they reduce is left to TensorFlow, which
takes a ring over gRPC between CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from training_tf.works import Step, main


class Mirrored:
    """Variables that are mirrored on all workers, and an optimizer that adds up their gradients."""

    def __init__(self) -> None:
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self.rank = self.strategy.cluster_resolver.task_id
        self.ranks = self.strategy.num_replicas_in_sync
        self._gather = tf.function(lambda value: self.strategy.gather(value, axis=0))

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.maximum(0.0)

    def maximum(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        return float(tf.reduce_max(self._gather(tf.constant([value], tf.float64))).numpy())

    def scope(self) -> Any:
        """Mirror what is made."""
        return self.strategy.scope()

    def step(self, loss_of: Step, variables: Sequence[Any], optimizer: Any) -> Step:
        """Run the step as a replica, whose optimizer adds up the gradients of all."""

        def replica() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of() / self.ranks
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        return tf.function(lambda: self.strategy.run(replica))

    def start_alike(self, variables: Sequence[tf.Variable]) -> None:
        """Do nothing: mirrored variables start alike."""


if __name__ == "__main__":
    main(Mirrored)
