"""The interface that scripts and other packages rely on: names, arguments, defaults, modules."""

from __future__ import annotations

import importlib
import os

import pytest

import horovod.keras as hvd
from promises import BASICS, COMMON_MODULES, examples_run, import_advises, import_binds, runs, signature

BACKEND = os.environ["KERAS_BACKEND"]
COMMON = {
    **BASICS,
    "broadcast_global_variables": "root_rank",
    "allgather": "value, name=None",
    "broadcast": "value, root_rank, name=None",
    "reducescatter": "value, name=None, op=AVERAGE",
    "load_model": "filepath, custom_optimizers=None, custom_objects=None, compression=NONE, legacy_opts=False",
}
FIRST = (
    "optimizer, name=None, device_dense='', device_sparse='', compression=NONE, sparse_as_dense=False, "
    "gradient_predivide_factor=1.0, op=AVERAGE, "
)
PASSES = "backward_passes_per_step=1, average_aggregated_gradients=False, "
KERAS = {
    **COMMON,
    "DistributedOptimizer": f"{FIRST}num_groups=0, groups=None",
    "PartialDistributedOptimizer": f"{FIRST}{PASSES}groups=None, process_set=GLOBAL, local_layers=None, "
    "scale_local_gradients=True",
    "allreduce": "value, name=None, average=True, prescale_factor=1.0, postscale_factor=1.0, op=None, compression=NONE",
}
TF_KERAS = {
    **COMMON,
    "DistributedOptimizer": f"{FIRST}{PASSES}num_groups=0, groups=None, process_set=GLOBAL, scale_local_gradients=True",
    "allreduce": "value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, compression=NONE",
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
}
CALLBACKS = {
    "BroadcastGlobalVariablesCallback": "root_rank, device='', local_variables=None",
    "MetricAverageCallback": "device=''",
    "LearningRateScheduleCallback": "initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
    "momentum_correction=True, steps_per_epoch=None",
    "LearningRateWarmupCallback": "initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, "
    "verbose=0",
}
BEST = {
    "horovod.keras": "monitor='val_loss', verbose=0, mode='auto', save_freq='epoch'",
    "horovod.tensorflow.keras": "monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', "
    "save_freq='epoch'",
}
ELASTIC = {
    "KerasState": "model, optimizer=None, kwargs",
    "CommitStateCallback": "state, batches_per_commit=1",
    "UpdateBatchStateCallback": "state",
    "UpdateEpochStateCallback": "state",
    "run": "func",
}
FRONTS = {"horovod.keras": KERAS}
if BACKEND == "tensorflow":
    FRONTS["horovod.tensorflow.keras"] = TF_KERAS


# What importing them binds in Horovod 0.28.1, except that there `horovod.keras` brings TensorFlow and its front along.
MODULES = {
    "horovod.keras": [
        *COMMON_MODULES,
        "horovod.keras",
        "horovod.keras.callbacks",
        "horovod.keras.elastic",
    ],
    "horovod.tensorflow.keras": [
        *COMMON_MODULES,
        "horovod.tensorflow.keras",
        "horovod.tensorflow.keras.callbacks",
        "horovod.tensorflow.keras.elastic",
        "horovod.tensorflow.compression",
        "horovod.tensorflow.elastic",
        "horovod.tensorflow.functions",
        "horovod.tensorflow.gradient_aggregation",
        "horovod.tensorflow.gradient_aggregation_eager",
        "horovod.tensorflow.mpi_ops",
        "horovod.tensorflow.sync_batch_norm",
        "horovod.tensorflow.util",
    ],
}


@pytest.mark.parametrize("front", FRONTS)
def test_importing_the_package_binds_its_modules(front: str) -> None:
    import_binds(front, MODULES[front])


@pytest.mark.parametrize("front", FRONTS)
def test_all_names_are_there(front: str) -> None:
    module = importlib.import_module(front)
    others = {"Average", "Sum", "Compression", "callbacks", "elastic", "global_process_set"}
    if front == "horovod.keras":
        others |= {"Adasum"}
    assert set(module.__all__) == FRONTS[front].keys() | others
    assert len(module.__all__) == {"horovod.keras": 36, "horovod.tensorflow.keras": 37}[front]
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert (module.Average, module.Sum) == (0, 1)


@pytest.mark.parametrize(("front", "name"), [(front, name) for front in FRONTS for name in FRONTS[front]])
def test_arguments_and_defaults(front: str, name: str) -> None:
    assert signature(getattr(importlib.import_module(front), name), hvd.Compression.none) == FRONTS[front][name]


@pytest.mark.parametrize("front", FRONTS)
def test_callbacks_and_elastic(front: str) -> None:
    callbacks = importlib.import_module(f"{front}.callbacks")
    for name, expected in {**CALLBACKS, "BestModelCheckpoint": BEST[front]}.items():
        assert signature(getattr(callbacks, name), hvd.Compression.none) == expected, name
    elastic = importlib.import_module(f"{front}.elastic")
    for name, expected in ELASTIC.items():
        assert signature(getattr(elastic, name), hvd.Compression.none) == expected, name
    assert importlib.import_module(front).callbacks is callbacks
    assert importlib.import_module(front).elastic is elastic


DOCUMENTED = [
    "ronde.keras",
    "ronde.keras.callbacks",
    "ronde.keras.elastic",
    "ronde.keras.front",
    "ronde.keras.names",
    "ronde.keras.narrow",
    "ronde.keras.values",
]


def test_examples_in_docstrings_run() -> None:
    examples_run(DOCUMENTED)


def test_only_what_runs_keras_is_imported() -> None:
    others = {"tensorflow", "torch", "jax"} - {BACKEND}
    runs(f"import sys, horovod.keras; assert not {others!r} & set(sys.modules)")


@pytest.mark.parametrize(
    ("front", "hidden", "advice"),
    [
        ("horovod.keras", "keras", "pip install keras"),
        ("horovod.tensorflow.keras", "tensorflow", "pip install tensorflow"),
    ],
)
def test_without_the_framework_the_import_says_what_to_install(front: str, hidden: str, advice: str) -> None:
    import_advises(front, hidden, advice)
