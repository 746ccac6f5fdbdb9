"""Models that were compiled with a distributed optimizer are saved and loaded as any other."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy
from trainings import BATCH, KERAS3, data, mine, same_on_all_ranks, same_weights, train_together

import horovod.keras as hvd
from ronde.keras.flavours import own_variables, to_numpy
from ronde.keras.optimizer import is_distributed
from together import on_ranks

# The formats that all versions have, and the one that Keras 3 has no more.
FORMATS = ["model.keras", "model.h5"] if KERAS3 else ["model.keras", "model.h5", "model"]

LOAD_WITHOUT = """
    import sys
    # As if the package were not installed.
    sys.modules["ronde"] = sys.modules["horovod"] = None
    import keras, numpy
    for path in sys.argv[1:]:
        model = keras.models.load_model(path)
        kind = type(model.optimizer)
        assert kind.__name__ == "Adam" and "ronde" not in kind.__module__, kind
        assert model.optimizer.__class__ is kind
        print("loaded", float(numpy.sum(model.predict(numpy.ones((1, 4)), verbose=0))))
        if path.endswith(".keras"):
            # The other formats Keras itself loads with less of an optimizer, or with one that cannot be used.
            assert int(model.optimizer.iterations) == 8, model.optimizer.iterations
            model.fit(numpy.ones((4, 4)), numpy.ones((4, 2)), verbose=0)
"""


class Stubborn(keras.optimizers.SGD):
    """An optimizer that Keras does not know."""


def saved(model: Any) -> list[str]:
    """Save a model in all formats, on every rank for itself."""
    folder = Path(tempfile.mkdtemp())
    paths = [str(folder / name) for name in FORMATS]
    for path in paths:
        model.save(path)
    return paths


def train_on(model: Any) -> None:
    inputs, targets = map(mine, data())
    model.fit(inputs, targets, batch_size=BATCH // hvd.size(), epochs=1, shuffle=False, verbose=0)


@on_ranks(2)
def test_a_loaded_model_goes_on_as_if_it_had_not_been_saved() -> None:
    model = train_together(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    paths = saved(model)
    loaded = [hvd.load_model(path) for path in paths]
    for other in loaded:
        assert is_distributed(other.optimizer)
        assert type(other.optimizer).__name__ == "Adam"
        same_weights(other, model)
    train_on(model)
    for path, other in zip(paths, loaded):
        train_on(other)
        same_on_all_ranks(other)
        if Path(path).suffix == "":
            # Keras 2 does not bring the moments back from this format.
            continue
        same_weights(other, model)
        assert int(other.optimizer.iterations) == int(model.optimizer.iterations) == 12
        ours, theirs = own_variables(other.optimizer), own_variables(model.optimizer)
        assert len(ours) == len(theirs)
        for left, right in zip(ours, theirs):
            numpy.testing.assert_allclose(to_numpy(left), to_numpy(right), rtol=1e-4, atol=1e-6)


@on_ranks(2)
def test_a_saved_model_loads_where_this_package_is_not_installed() -> None:
    model = train_together(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    if hvd.rank() == 0:
        expected = float(numpy.sum(model.predict(numpy.ones((1, 4)), verbose=0)))
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(LOAD_WITHOUT), *saved(model)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        found = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loaded")]
        numpy.testing.assert_allclose(found, [expected] * len(FORMATS), rtol=1e-4)
    hvd.allreduce(0.0, name="rank 0 has loaded them")


@on_ranks(2)
def test_a_model_saved_without_this_package_is_distributed_when_loaded() -> None:
    model = train_together(keras.optimizers.SGD(0.1, momentum=0.9))
    for path in saved(model)[:2]:
        other = hvd.load_model(path, compression=hvd.Compression.fp16)
        assert is_distributed(other.optimizer)
        train_on(other)
        assert any((new != old).any() for new, old in zip(other.get_weights(), model.get_weights()))


@on_ranks(2)
def test_optimizers_that_keras_does_not_know() -> None:
    model = train_together(hvd.DistributedOptimizer(Stubborn(0.1)))
    path = saved(model)[0]
    for other in (
        hvd.load_model(path, custom_optimizers=[Stubborn]),
        hvd.load_model(path, custom_objects={"Stubborn": Stubborn}),
    ):
        assert isinstance(other.optimizer, Stubborn)
        assert is_distributed(other.optimizer)
        assert other.optimizer.__class__ is Stubborn


@on_ranks(2)
def test_a_distributed_optimizer_is_described_as_the_plain_one() -> None:
    for plain in (keras.optimizers.SGD(0.1, momentum=0.5), keras.optimizers.Adam(0.01), keras.optimizers.RMSprop()):
        distributed = hvd.DistributedOptimizer(plain)
        assert keras.optimizers.serialize(distributed) == keras.optimizers.serialize(plain)
        assert distributed.get_config() == plain.get_config()
    assert hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), name="mine").get_config()["name"] == "mine"


@on_ranks(2)
def test_weights_of_a_distributed_optimizer_are_checkpointed() -> None:
    folder = Path(tempfile.mkdtemp())
    model = train_together(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    model.save_weights(str(folder / "model.weights.h5"))
    other = train_together(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), epochs=1)
    other.load_weights(str(folder / "model.weights.h5"))
    same_weights(other, model, 0.0)
