"""The works of the training benchmark with TensorFlow, whatever library exchanges the gradients.

They are timed by `training.timing`; each rank prints one JSON line for each. The library under test is given by the
program that calls `main`: `training_tf.hvd`, `training_tf.mirrored` or `training_tf.alone`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from training import shapes
from training.timing import Ranks, Work, measure

LEARNING_RATE = 1e-3
IMAGES = 8
PIXELS = 32
CLASSES = 1000

# Makes one step of training when called, and returns the loss.
Step = Callable[[], tf.Tensor]


class Library(Ranks, Protocol):
    """What trains on several ranks, as seen from one of them."""

    def scope(self) -> Any:
        """Return the context in which variables, models and optimizers have to be made."""

    def step(self, loss_of: Step, variables: Sequence[tf.Variable], optimizer: Any) -> Step:
        """Return a compiled step that averages the gradients of the loss over all ranks and applies them."""

    def start_alike(self, variables: Sequence[tf.Variable]) -> None:
        """Give all ranks the same values, where that does not happen by itself."""


def tape(library: Library) -> Work:
    """Make steps with gradients of ResNet-50's sizes and next to no computation, so that the exchange is what counts.

    Each gradient is one number of this rank all over, so every element of the variables is known after each step.
    """
    with library.scope():
        variables = [tf.Variable(tf.zeros(shape)) for shape in shapes.resnet50()]
        optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)
        optimizer.build(variables)
    # Variables of this rank alone: constants would be folded into gradients that nobody computes.
    slopes = [tf.Variable(float((library.rank + 1) * (index % 7 + 1))) for index in range(len(variables))]

    def loss_of() -> tf.Tensor:
        return tf.add_n([slope * tf.reduce_sum(variable) for slope, variable in zip(slopes, variables)])

    step = library.step(loss_of, variables, optimizer)
    steps_made = 0

    def call() -> None:
        nonlocal steps_made
        step()
        steps_made += 1

    def is_right() -> bool:
        for index, variable in enumerate(variables):
            mean = (library.ranks + 1) / 2 * (index % 7 + 1)
            expected = -LEARNING_RATE * steps_made * mean
            extremes = (tf.reduce_min(variable).numpy(), tf.reduce_max(variable).numpy())
            if not all(math.isclose(value, expected, rel_tol=1e-4) for value in extremes):
                return False
        return True

    return Work(_bytes(variables), lambda: None, call, is_right, batch=1, meet=True)


def resnet(library: Library) -> Work:
    """Train Keras' ResNet-50 on small images, so that the gradients, whose size stays, weigh more than the rest."""
    # Ranks draw weights and images of their own.
    tf.random.set_seed(library.rank)
    images = tf.random.normal((IMAGES, PIXELS, PIXELS, 3))
    labels = tf.random.uniform((IMAGES,), maxval=CLASSES, dtype=tf.int32)
    with library.scope():
        model = tf.keras.applications.ResNet50(weights=None, input_shape=(PIXELS, PIXELS, 3), classes=CLASSES)
        optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
        optimizer.build(model.trainable_variables)
    variables = [_unwrapped(variable) for variable in model.trainable_variables]
    library.start_alike([_unwrapped(variable) for variable in model.variables])

    def loss_of() -> tf.Tensor:
        losses = tf.keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True))
        return tf.reduce_mean(losses)

    step = library.step(loss_of, model.trainable_variables, optimizer)

    def is_right() -> bool:
        """Ranks learn from different images, so they only agree if they exchanged what they learnt."""
        total = math.fsum(tf.reduce_sum(tf.cast(variable, tf.float64)).numpy() for variable in variables)
        return math.isfinite(total) and library.maximum(total) == total

    return Work(_bytes(variables), lambda: None, step, is_right, batch=2, meet=False)


def _unwrapped(variable: Any) -> tf.Variable:
    """Return TensorFlow's variable of one of Keras 3; Keras 2 has no other."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _bytes(variables: Sequence[tf.Variable]) -> int:
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)


# By the names that harness.aims has for them.
WORKS: dict[str, Callable[[Library], Work]] = {"tape": tape, "resnet": resnet}


def main(connect: Callable[[], Library]) -> None:
    """Measure the works on the command line and print this rank's lines."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, required=True)
    arguments.add_argument("works", choices=sorted(WORKS), nargs="+")
    options = arguments.parse_args()
    # All libraries exchange between CPUs. The ranks are what runs in parallel here; the pool that starts operations
    # stays as TensorFlow has it.
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    library = connect()
    for name in options.works:
        line = {"work": name, "rank": library.rank, **measure(library, WORKS[name](library), options.seconds)}
        print(json.dumps(line), flush=True)
