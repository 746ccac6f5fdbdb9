"""PyTorch on all ranks: collectives on tensors, the distributed optimizer, and what goes with them.

``import horovod.torch as hvd`` gives the same names. A training script needs five lines more than for one process:

>>> import torch, horovod.torch as hvd
>>> hvd.init()
>>> model = torch.nn.Linear(2, 1)
>>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
>>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size()))
>>> model(torch.ones(4, 2)).sum().backward()
>>> optimizer.step()
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("horovod.torch needs PyTorch, which is not installed; `pip install torch` gets it") from error
if str(getattr(_torch, "__version__", "")).partition(".")[0] in ("0", "1"):
    raise ImportError(
        f"horovod.torch needs PyTorch 2.0 or newer; this is {_torch.__version__}; "
        "`pip install --upgrade torch` gets a newer one"
    )

from ronde._basics import basics as _basics
from ronde._collectives import Adasum, Average, Max, Min, Product, Sum
from ronde.exceptions import HorovodInternalError
from ronde.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ronde.torch import elastic
from ronde.torch.autograd import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from ronde.torch.compression import Compression
from ronde.torch.dynamo import stay_opaque as _stay_opaque
from ronde.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ronde.torch.handles import poll, synchronize
from ronde.torch.ops import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    join,
    reducescatter_async,
)
from ronde.torch.optimizer import DistributedOptimizer
from ronde.torch.sparse import sparse_allreduce_async
from ronde.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
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


def _check_has_gpu() -> bool:
    """Tell whether PyTorch sees a GPU."""
    found: bool = _torch.cuda.is_available()
    return found


_stay_opaque()
