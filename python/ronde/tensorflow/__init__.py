"""TensorFlow on all ranks: collectives on tensors, distributed tapes and optimizers, and what goes with them.

``import horovod.tensorflow as hvd`` gives the same names. A training step needs two lines more than for one process:

>>> import tensorflow as tf, horovod.tensorflow as hvd
>>> hvd.init()
>>> weight = tf.Variable([1.0, 2.0])
>>> with tf.GradientTape() as tape:
...     loss = tf.reduce_sum(weight * weight)
>>> tape = hvd.DistributedGradientTape(tape)
>>> weight.assign_sub(0.25 * tape.gradient(loss, weight)).numpy().tolist()
[0.5, 1.0]
>>> hvd.broadcast_variables([weight], root_rank=0)

What not every script uses is imported when it is first asked for. Most of all that is what needs Keras, which takes
longer to import than everything else here.
"""

from __future__ import annotations

import importlib
from typing import Any

try:
    import tensorflow as _tf
except ImportError as error:
    raise ImportError(
        "horovod.tensorflow needs TensorFlow, which is not installed; `pip install tensorflow` gets it"
    ) from error

from ronde._basics import basics as _basics
from ronde._build import gpu_available
from ronde._collectives import Adasum, Average, Max, Min, Product, Sum
from ronde.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ronde.tensorflow.calls import (
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from ronde.tensorflow.compression import Compression
from ronde.tensorflow.functions import (
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from ronde.tensorflow.ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from ronde.tensorflow.reductions import check_num_rank_power_of_2, handle_average_backwards_compatibility
from ronde.tensorflow.references import refs_to_vars, vars_to_refs
from ronde.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

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

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built

# What is imported when it is first asked for, and from where.
_LATER = {
    "DistributedOptimizer": "ronde.tensorflow.optimizer",
    "LocalGradientAggregationHelper": "ronde.tensorflow.aggregation",
    "SyncBatchNormalization": "ronde.tensorflow.sync_batch_norm",
    "elastic": "ronde.tensorflow.elastic",
}
if hasattr(_tf.compat.v1.train, "SessionRunHook"):
    _LATER["BroadcastGlobalVariablesHook"] = "ronde.tensorflow.hooks"
    __all__ += ["BroadcastGlobalVariablesHook"]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_LATER[name])
    value = getattr(module, name, module)
    globals()[name] = value
    return value
