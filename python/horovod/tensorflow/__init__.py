"""Horovod for TensorFlow: the names that existing scripts import, all of them from :mod:`ronde.tensorflow`."""

from __future__ import annotations

import importlib
from typing import Any

import ronde.tensorflow as _front
from horovod.tensorflow import compression as compression
from horovod.tensorflow import elastic
from horovod.tensorflow import functions as functions
from horovod.tensorflow import gradient_aggregation as gradient_aggregation
from horovod.tensorflow import gradient_aggregation_eager as gradient_aggregation_eager
from horovod.tensorflow import mpi_ops as mpi_ops
from horovod.tensorflow import util as util
from ronde.tensorflow import (
    Adasum,
    Average,
    Compression,
    DistributedGradientTape,
    Max,
    Min,
    PartialDistributedGradientTape,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
    ccl_built,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    gpu_available,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    handle_average_backwards_compatibility,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    reducescatter,
    refs_to_vars,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
    vars_to_refs,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "vars_to_refs",
]
# TensorFlow may have stopped to offer what this is made of.
__all__ += [name for name in _front.__all__ if name == "BroadcastGlobalVariablesHook"]


def __getattr__(name: str) -> Any:
    # The one module that needs Keras, which takes longer to import than everything else here.
    if name == "sync_batch_norm":
        return importlib.import_module("horovod.tensorflow.sync_batch_norm")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_front, name)
