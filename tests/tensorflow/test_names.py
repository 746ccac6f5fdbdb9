"""The interface that scripts and other packages rely on: names, arguments, defaults, modules."""

from __future__ import annotations

import importlib

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from promises import BASICS, COMMON_MODULES, examples_run, import_advises, import_binds, runs, signature

DEVICES = "device_dense='', device_sparse='', compression=NONE"
REDUCTION = "op=None, prescale_factor=1.0, postscale_factor=1.0"
GRADIENTS = (
    "sparse_as_dense=False, op=AVERAGE, gradient_predivide_factor=1.0, num_groups=0, groups=None, process_set=GLOBAL"
)
PLACED = "name=None, ignore_name_scope=False, process_set=GLOBAL"
SIGNATURES = {
    **BASICS,
    "is_homogeneous": "",
    "join": "",
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "allreduce": f"tensor, average=None, {DEVICES}, {REDUCTION}, name=None, process_set=GLOBAL, "
    "ignore_name_scope=False",
    "grouped_allreduce": f"tensors, average=None, {DEVICES}, {REDUCTION}, process_set=GLOBAL, ignore_name_scope=False, "
    "name=None",
    "reducescatter": "tensor, device_dense='', compression=NONE, op=AVERAGE, name=None, process_set=GLOBAL, "
    "ignore_name_scope=False, prescale_factor=1.0, postscale_factor=1.0",
    "grouped_reducescatter": "tensors, device_dense='', compression=NONE, op=AVERAGE, process_set=GLOBAL, "
    "prescale_factor=1.0, postscale_factor=1.0",
    "allgather": f"tensor, {PLACED}",
    "grouped_allgather": f"tensors, {PLACED}",
    "broadcast": f"tensor, root_rank, {PLACED}",
    "broadcast_": "variables, root_rank, name=None, process_set=GLOBAL",
    "alltoall": f"tensor, splits=None, {PLACED}",
    "size_op": "process_set_id=0, name=None",
    "local_size_op": "name=None",
    "rank_op": "name=None",
    "local_rank_op": "name=None",
    "process_set_included_op": "process_set_id=0, name=None",
    "broadcast_variables": "variables, root_rank, process_set=GLOBAL, inplace=False",
    "broadcast_object": "obj, root_rank=0, session=None, name=None, process_set=GLOBAL",
    "broadcast_object_fn": "root_rank=0, session=None, name=None, process_set=GLOBAL",
    "allgather_object": "obj, session=None, name=None, process_set=GLOBAL",
    "broadcast_global_variables": "root_rank",
    "DistributedOptimizer": f"optimizer, name=None, use_locking=False, {DEVICES}, sparse_as_dense=False, "
    "backward_passes_per_step=1, op=AVERAGE, gradient_predivide_factor=1.0, average_aggregated_gradients=False, "
    "num_groups=0, groups=None, process_set=GLOBAL, scale_local_gradients=True",
    "DistributedGradientTape": f"gradtape, {DEVICES}, {GRADIENTS}, scale_local_gradients=True",
    "PartialDistributedGradientTape": f"gradtape, {DEVICES}, {GRADIENTS}, local_layers=None, "
    "scale_local_gradients=True",
    "SyncBatchNormalization": "fused=False, kwargs",
    "handle_average_backwards_compatibility": "op, average",
    "check_num_rank_power_of_2": "num_rank",
    "vars_to_refs": "vars",
    "refs_to_vars": "refs",
    "gpu_available": "ext_base_name, verbose=False",
    "LocalGradientAggregationHelper": "backward_passes_per_step, allreduce_func, sparse_as_dense, "
    "average_aggregated_gradients, rank, optimizer_type, process_set=GLOBAL, scale_local_gradients=True, name=''",
}
OTHERS = {"Average", "Sum", "Adasum", "Min", "Max", "Product", "Compression", "elastic", "global_process_set"}


def test_there_are_64_names_and_the_hook() -> None:
    names = set(hvd.__all__)
    if hasattr(tf.compat.v1.train, "SessionRunHook"):
        names.remove("BroadcastGlobalVariablesHook")
        assert signature(hvd.BroadcastGlobalVariablesHook, hvd.Compression.none) == "root_rank, device=''"
        assert issubclass(hvd.BroadcastGlobalVariablesHook, tf.compat.v1.train.SessionRunHook)
    assert len(names) == 64
    assert names == SIGNATURES.keys() | OTHERS
    for name in hvd.__all__:
        assert getattr(hvd, name) is getattr(importlib.import_module("ronde.tensorflow"), name) or name == "elastic"
    for module in (hvd, importlib.import_module("ronde.tensorflow")):
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            module.nonsense  # noqa: B018


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_and_defaults(name: str) -> None:
    assert signature(getattr(hvd, name), hvd.Compression.none) == SIGNATURES[name]


def test_constants() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]
    assert (hvd.mpi_built(), hvd.mpi_enabled(), hvd.gloo_built(), hvd.gloo_enabled()) == (False, False, True, True)
    assert hvd.handle_average_backwards_compatibility(None, None) == hvd.Average
    assert hvd.gpu_available("tensorflow") is False


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("horovod.tensorflow.mpi_ops", "allgather alltoall broadcast broadcast_ join rank size size_op Average init"),
        ("horovod.tensorflow.compression", "Compression Compressor NoneCompressor FP16Compressor"),
        (
            "horovod.tensorflow.functions",
            "broadcast_object broadcast_object_fn broadcast_variables allgather_object",
        ),
        ("horovod.tensorflow.gradient_aggregation", "LocalGradientAggregationHelper"),
        ("horovod.tensorflow.gradient_aggregation_eager", "LocalGradientAggregationHelperEager"),
        ("horovod.tensorflow.sync_batch_norm", "SyncBatchNormalization"),
        ("horovod.tensorflow.elastic", "run TensorFlowState TensorFlowKerasState"),
        ("horovod.tensorflow.util", "vars_to_refs refs_to_vars _executing_eagerly"),
    ],
)
def test_modules_that_other_packages_import(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


# What importing it binds in Horovod 0.28.1.
MODULES = [
    *COMMON_MODULES,
    "horovod.tensorflow",
    "horovod.tensorflow.compression",
    "horovod.tensorflow.elastic",
    "horovod.tensorflow.functions",
    "horovod.tensorflow.gradient_aggregation",
    "horovod.tensorflow.mpi_ops",
    "horovod.tensorflow.sync_batch_norm",
    "horovod.tensorflow.util",
]


def test_importing_the_package_binds_its_modules() -> None:
    import_binds("horovod.tensorflow", MODULES)


DOCUMENTED = [
    "ronde._objects",
    "ronde.tensorflow",
    "ronde.tensorflow.elastic",
    "ronde.tensorflow.functions",
    "ronde.tensorflow.naming",
    "ronde.tensorflow.ops",
    "ronde.tensorflow.reductions",
    "ronde.tensorflow.references",
    "ronde.tensorflow.sync_batch_norm",
    "ronde.tensorflow.tape",
]


def test_examples_in_docstrings_run() -> None:
    examples_run(DOCUMENTED)


def test_without_tensorflow_the_import_says_what_to_install() -> None:
    import_advises("horovod.tensorflow", "tensorflow", "pip install tensorflow")


def test_importing_does_not_import_keras() -> None:
    script = """
        import sys, time
        import tensorflow
        before, start = set(sys.modules), time.perf_counter()
        import horovod.tensorflow
        print(f"importing horovod.tensorflow took {1000 * (time.perf_counter() - start):.0f} ms")
        more = {name for name in set(sys.modules) - before if name.split(".")[0] in ("keras", "tf_keras")}
        assert not more, sorted(more)
    """
    print(runs(script))
