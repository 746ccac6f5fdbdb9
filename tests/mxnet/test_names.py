"""The interface that scripts and other packages rely on: names, arguments, defaults, modules."""

from __future__ import annotations

import importlib

import pytest

import horovod.mxnet as hvd
from promises import BASICS, COMMON_MODULES, examples_run, import_advises, import_binds, runs, signature

REDUCTION = (
    "average=None, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0, process_set=GLOBAL, op=None"
)
SCATTER = "op=AVERAGE, name=None, priority=0, process_set=GLOBAL, prescale_factor=1.0, postscale_factor=1.0"
SIGNATURES = {
    **BASICS,
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "allreduce": f"tensor, {REDUCTION}",
    "allreduce_": f"tensor, {REDUCTION}",
    "grouped_allreduce": f"tensors, {REDUCTION}",
    "grouped_allreduce_": f"tensors, {REDUCTION}",
    "allgather": "tensor, name=None, priority=0, process_set=GLOBAL",
    "grouped_allgather": "tensors, name=None, priority=0, process_set=GLOBAL",
    "broadcast": "tensor, root_rank, name=None, priority=0, process_set=GLOBAL",
    "broadcast_": "tensor, root_rank, name=None, priority=0, process_set=GLOBAL",
    "alltoall": "tensor, splits=None, name=None, priority=0, process_set=GLOBAL",
    "reducescatter": f"tensor, {SCATTER}",
    "grouped_reducescatter": f"tensors, {SCATTER}",
    "DistributedOptimizer": "optimizer, gradient_predivide_factor=1.0, num_groups=0, process_set=GLOBAL",
    "DistributedTrainer": "params, optimizer, optimizer_params=None, compression=NONE, gradient_predivide_factor=1.0, "
    "prefix=None, num_groups=0, process_set=GLOBAL",
    "broadcast_parameters": "params, root_rank=0, prefix=None",
    "broadcast_object": "obj, root_rank=0, name=None",
    "allgather_object": "obj, name=None",
}
OTHERS = {"Average", "Sum", "Adasum", "Min", "Max", "Product", "Compression", "global_process_set"}


def test_there_are_48_names() -> None:
    assert len(hvd.__all__) == 48
    assert set(hvd.__all__) == SIGNATURES.keys() | OTHERS
    for name in hvd.__all__:
        assert getattr(hvd, name) is getattr(importlib.import_module("ronde.mxnet"), name)


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_and_defaults(name: str) -> None:
    assert signature(getattr(hvd, name), hvd.Compression.none) == SIGNATURES[name]


def test_constants() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]
    assert (hvd.mpi_built(), hvd.mpi_enabled(), hvd.gloo_built(), hvd.gloo_enabled()) == (False, False, True, True)
    assert (hvd.ddl_built(), hvd.ccl_built(), hvd.rocm_built()) == (False, False, False)
    # What the machine has: nothing, or an NCCL that is new enough.
    assert hvd.nccl_built() == 0 or hvd.nccl_built() >= 21400


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("horovod.mxnet.mpi_ops", "allreduce_ allgather broadcast rank size is_homogeneous Average init ProcessSet"),
        ("horovod.mxnet.compression", "Compression Compressor NoneCompressor FP16Compressor"),
        ("horovod.mxnet.functions", "broadcast_object allgather_object"),
    ],
)
def test_modules_that_other_packages_import(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


# What importing it binds in Horovod 0.28.1.
MODULES = [
    *COMMON_MODULES,
    "horovod.mxnet",
    "horovod.mxnet.compression",
    "horovod.mxnet.functions",
    "horovod.mxnet.mpi_ops",
]


def test_importing_the_package_binds_its_modules() -> None:
    import_binds("horovod.mxnet", MODULES)


def test_user_written_compressors() -> None:
    from horovod.mxnet.compression import Compressor

    with pytest.raises(NotImplementedError):
        Compressor.compress(None)
    with pytest.raises(NotImplementedError):
        Compressor.decompress(None, None)


DOCUMENTED = [
    "ronde.mxnet",
    "ronde.mxnet.functions",
    "ronde.mxnet.ops",
    "ronde.mxnet.optimizer",
    "ronde.mxnet.parameters",
    "ronde.mxnet.trainer",
]


def test_examples_in_docstrings_run() -> None:
    examples_run(DOCUMENTED)


def test_without_mxnet_the_import_says_what_to_install() -> None:
    import_advises("horovod.mxnet", "mxnet", "pip install 'mxnet==1.9.1'")


def test_with_a_numpy_that_is_too_new_the_import_says_so() -> None:
    runs(
        """
        import sys, numpy
        # NumPy 1.24 has taken this away.
        del numpy.__deprecated_attrs__["bool"]
        try:
            import horovod.mxnet
        except ImportError as error:
            assert "numpy<1.24" in str(error) and "bool" in str(error), error
        else:
            sys.exit("no ImportError")
        """
    )
