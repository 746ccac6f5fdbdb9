"""MXNet on all ranks: collectives on arrays, the distributed trainer, and what goes with them.

``import horovod.mxnet as hvd`` gives the same names. A training script needs four lines more than for one process:

>>> import mxnet as mx, horovod.mxnet as hvd
>>> hvd.init()
>>> net = mx.gluon.nn.Dense(1)
>>> net.initialize()
>>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)
>>> trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1 * hvd.size()})
>>> with mx.autograd.record():
...     loss = net(mx.nd.ones((4, 2))).sum()
>>> loss.backward()
>>> trainer.step(4)
"""

from __future__ import annotations

try:
    import mxnet as _mxnet  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "mxnet":
        raise
    raise ImportError(
        "horovod.mxnet needs MXNet, which is not installed; `pip install 'mxnet==1.9.1' 'numpy<1.24'` gets it"
    ) from error
except (AttributeError, ImportError, OSError) as error:
    # MXNet uses names that NumPy 1.24 no longer has, and fails in the middle of its own import.
    raise ImportError(
        f"horovod.mxnet needs MXNet, which is installed but cannot be imported: {error}. MXNet 1.9.1 works with "
        "`pip install 'numpy<1.24'`"
    ) from error

from ronde._basics import basics as _basics
from ronde._collectives import Adasum, Average, Max, Min, Product, Sum
from ronde.mxnet.compression import Compression
from ronde.mxnet.functions import allgather_object, broadcast_object
from ronde.mxnet.ops import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from ronde.mxnet.optimizer import DistributedOptimizer
from ronde.mxnet.parameters import broadcast_parameters
from ronde.mxnet.trainer import DistributedTrainer
from ronde.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
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
