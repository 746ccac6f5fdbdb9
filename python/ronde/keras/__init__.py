"""Keras on all ranks: the distributed optimizer, callbacks, and collectives on values.

Keras 2 and 3; models run by TensorFlow, PyTorch or JAX. ``import horovod.keras as hvd`` and ``import
horovod.tensorflow.keras as hvd`` give the same, with the arguments that Horovod has there. A training script needs
three changes:

>>> import keras, horovod.keras as hvd
>>> hvd.init()
>>> model = keras.Sequential([keras.layers.Dense(1)])
>>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), loss="mse")
>>> callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
"""

from __future__ import annotations

try:
    import keras as _keras  # noqa: F401
except ImportError as error:
    raise ImportError("horovod.keras needs Keras, which is not installed; `pip install keras` gets it") from error

from ronde._basics import basics as _basics
from ronde._collectives import Average, Sum
from ronde.keras import callbacks, elastic
from ronde.keras.compression import Compression
from ronde.keras.front import DistributedOptimizer, PartialDistributedOptimizer, allreduce, load_model
from ronde.keras.values import allgather, broadcast, reducescatter
from ronde.keras.variables import broadcast_global_variables
from ronde.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
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
