"""The interface that scripts and other packages rely on: names, arguments, defaults, modules."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import horovod.torch as hvd
import ronde
from promises import BASICS, COMMON_MODULES, examples_run, import_advises, import_binds, runs, signature

REDUCTION = "average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=GLOBAL"
COMPRESSED = (
    "average=None, name=None, compression=NONE, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=GLOBAL"
)
SCATTER = "name=None, op=AVERAGE, process_set=GLOBAL, prescale_factor=1.0, postscale_factor=1.0"
SCATTER_COMPRESSED = (
    "name=None, compression=NONE, op=AVERAGE, process_set=GLOBAL, prescale_factor=1.0, postscale_factor=1.0"
)
SIGNATURES = {
    **BASICS,
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "allreduce": f"tensor, {COMPRESSED}",
    "allreduce_async": f"tensor, {REDUCTION}",
    "allreduce_": f"tensor, {REDUCTION}",
    "allreduce_async_": f"tensor, {REDUCTION}",
    "grouped_allreduce": f"tensors, {COMPRESSED}",
    "grouped_allreduce_async": f"tensors, {REDUCTION}",
    "grouped_allreduce_": f"tensors, {REDUCTION}",
    "grouped_allreduce_async_": f"tensors, {REDUCTION}",
    "sparse_allreduce_async": "tensor, name, op, process_set=GLOBAL",
    "allgather": "tensor, name=None, process_set=GLOBAL",
    "allgather_async": "tensor, name=None, process_set=GLOBAL",
    "grouped_allgather": "tensors, name=None, process_set=GLOBAL",
    "grouped_allgather_async": "tensors, name=None, process_set=GLOBAL",
    "broadcast": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_async": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=GLOBAL",
    "alltoall": "tensor, splits=None, name=None, process_set=GLOBAL",
    "alltoall_async": "tensor, splits=None, name=None, process_set=GLOBAL",
    "reducescatter": f"tensor, {SCATTER_COMPRESSED}",
    "reducescatter_async": f"tensor, {SCATTER}",
    "grouped_reducescatter": f"tensors, {SCATTER_COMPRESSED}",
    "grouped_reducescatter_async": f"tensors, {SCATTER}",
    "poll": "handle",
    "synchronize": "handle",
    "join": "device=-1",
    "barrier": "process_set=GLOBAL",
    # The process set at the end is ours.
    "broadcast_parameters": "params, root_rank, process_set=GLOBAL",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None, process_set=GLOBAL",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=GLOBAL",
    "allgather_object": "obj, name=None, process_set=GLOBAL",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=NONE, backward_passes_per_step=1, "
    "op=AVERAGE, gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set=GLOBAL",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
}
OTHERS = {"Average", "Sum", "Adasum", "Min", "Max", "Product"} | {
    "Compression",
    "HorovodInternalError",
    "elastic",
    "global_process_set",
}


def test_there_are_67_names() -> None:
    assert len(hvd.__all__) == 67
    assert set(hvd.__all__) == SIGNATURES.keys() | OTHERS
    for name in hvd.__all__:
        assert getattr(hvd, name) is getattr(importlib.import_module("ronde.torch"), name) or name == "elastic"


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_and_defaults(name: str) -> None:
    assert signature(getattr(hvd, name), hvd.Compression.none) == SIGNATURES[name]


def test_constants_and_exceptions() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert (hvd.mpi_built(), hvd.mpi_enabled(), hvd.gloo_built(), hvd.gloo_enabled()) == (False, False, True, True)
    assert (hvd.ddl_built(), hvd.ccl_built(), hvd.rocm_built()) == (False, False, False)
    # What the machine has: nothing, or an NCCL that is new enough.
    assert hvd.nccl_built() == 0 or hvd.nccl_built() >= 21400


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("horovod.torch", "_check_has_gpu"),
        ("horovod.torch.mpi_ops", "allreduce_async_ synchronize poll rank size is_homogeneous Average init join"),
        ("horovod.torch.optimizer", "DistributedOptimizer _DistributedOptimizer _DistributedAdasumOptimizer"),
        ("horovod.torch.compression", "Compression Compressor NoneCompressor FP16Compressor"),
        ("horovod.torch.functions", "broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object"),
        ("horovod.torch.sync_batch_norm", "SyncBatchNorm"),
        ("horovod.torch.elastic", "run TorchState ElasticSampler"),
        ("horovod.torch.elastic.state", "TorchState StateHandler get_handler_registry set_handler_registry"),
        ("horovod.torch.elastic.sampler", "ElasticSampler"),
        ("horovod.common.basics", "HorovodBasics"),
        ("horovod.common.process_sets", "ProcessSet global_process_set add_process_set remove_process_set"),
        ("horovod.common.exceptions", "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError"),
        ("horovod.common.elastic", "State ObjectState run_fn notification_manager"),
        (
            "horovod.common.util",
            "env extension_available gpu_available mpi_built gloo_built nccl_built ddl_built ccl_built split_list "
            "num_rank_is_power_2 check_installed_version",
        ),
        ("horovod.data", "BaseDataLoader AsyncDataLoaderMixin"),
    ],
)
def test_modules_that_other_packages_import(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


# What importing it binds in Horovod 0.28.1.
MODULES = [
    *COMMON_MODULES,
    "horovod.torch",
    "horovod.torch.compression",
    "horovod.torch.elastic",
    "horovod.torch.elastic.sampler",
    "horovod.torch.elastic.state",
    "horovod.torch.functions",
    "horovod.torch.mpi_ops",
    "horovod.torch.optimizer",
    "horovod.torch.sync_batch_norm",
]


def test_importing_the_package_binds_its_modules() -> None:
    import_binds("horovod.torch", MODULES)


DOCUMENTED = [
    "ronde._basics",
    "ronde._build",
    "ronde.data",
    "ronde.elastic",
    "ronde.exceptions",
    "ronde.process_sets",
    "ronde.torch",
    "ronde.torch.autograd",
    "ronde.torch.distributed_optimizer",
    "ronde.torch.elastic",
    "ronde.torch.elastic.sampler",
    "ronde.torch.elastic.state",
    "ronde.torch.functions",
    "ronde.torch.optimizer",
    "ronde.torch.sync_batch_norm",
]


def test_examples_in_docstrings_run() -> None:
    examples_run(DOCUMENTED)


def test_without_pytorch_the_import_says_what_to_install() -> None:
    import_advises("horovod.torch", "torch", "pip install torch")


def test_a_pytorch_that_is_too_old_is_named_at_the_import(tmp_path: Path) -> None:
    pretended = tmp_path / "torch.py"
    pretended.write_text('"""A pretended PyTorch, of an old version."""\n\n__version__ = "1.13.1+cpu"\n')
    script = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        try:
            import horovod.torch
        except ImportError as error:
            print(error)
        else:
            sys.exit("no ImportError")
    """
    assert runs(script) == (
        "horovod.torch needs PyTorch 2.0 or newer; this is 1.13.1+cpu; `pip install --upgrade torch` gets a newer one\n"
    )


def test_importing_does_not_import_the_compiler_but_sees_it_come() -> None:
    script = """
        import sys
        import horovod.torch as hvd
        assert "torch._dynamo" not in sys.modules
        finders = len(sys.meta_path)
        import torch._dynamo
        assert len(sys.meta_path) == finders - 1
        if hasattr(torch._dynamo, "trace_rules"):
            assert torch._dynamo.trace_rules.check(hvd.allreduce)
        else:
            assert torch._dynamo.skipfiles.check(hvd.allreduce.__code__.co_filename)
        assert torch._dynamo.__spec__.loader.is_package("torch._dynamo")
    """
    runs(script)


def test_no_file_of_the_package_includes_anything_of_the_framework() -> None:
    folder = Path(ronde.__file__).parent
    assert [path for path in folder.rglob("*") if path.suffix in {".h", ".cpp", ".cu", ".c"}] == []
