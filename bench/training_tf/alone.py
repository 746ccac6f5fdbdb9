"""Times the same steps without any exchange, as one of several processes that share the machine.

    python -m training_tf.alone --seconds 2 WORK...

What a step takes beyond this is what the exchange costs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from training_tf.works import Step, main


class Alone:
    """A rank that never meets the others: it is the only one that it knows of."""

    def __init__(self) -> None:
        self.rank = 0
        self.ranks = 1

    def barrier(self) -> None:
        """Go on."""

    def maximum(self, value: float) -> float:
        """Return this rank's value."""
        return value

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Ask for nothing."""
        return contextlib.nullcontext()

    def step(self, loss_of: Step, variables: Sequence[Any], optimizer: Any) -> Step:
        """Apply what this rank learnt."""

        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of()
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        return step

    def start_alike(self, variables: Sequence[tf.Variable]) -> None:
        """Train by oneself."""


if __name__ == "__main__":
    main(Alone)
