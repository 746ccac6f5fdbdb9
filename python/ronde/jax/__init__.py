"""JAX on all ranks: collectives in and out of compiled programs, the distributed optimizer, and what goes with them.

A training script needs a few lines more than for one process:

>>> import jax, jax.numpy as jnp, optax, ronde.jax as hvd
>>> hvd.init()
>>> params = hvd.broadcast_parameters({"w": jnp.ones(2)}, root_rank=0)
>>> optimizer = hvd.DistributedOptimizer(optax.sgd(0.1 * hvd.size()))
>>> state = optimizer.init(params)
>>> @jax.jit
... def step(params, state, batch):
...     gradients = jax.grad(lambda params: (batch @ params["w"]).mean())(params)
...     updates, state = optimizer.update(gradients, state, params)
...     return optax.apply_updates(params, updates), state
>>> params, state = step(params, state, jnp.ones((4, 2)))
"""

from __future__ import annotations

try:
    import jax as _jax
except ImportError as error:
    raise ImportError("ronde.jax needs JAX, which is not installed; `pip install jax` gets it") from error

from ronde._basics import basics as _basics
from ronde._collectives import Adasum, Average, Max, Min, Product, Sum
from ronde.exceptions import HorovodInternalError
from ronde.jax import elastic
from ronde.jax.compression import Compression
from ronde.jax.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ronde.jax.gradients import grad, reduce_gradients, value_and_grad
from ronde.jax.job import init, shutdown
from ronde.jax.ops import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allreduce,
    join,
    reducescatter,
)
from ronde.jax.optimizer import DistributedOptimizer
from ronde.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

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
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
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
    "grad",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reduce_gradients",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "value_and_grad",
]

del _jax

is_initialized = _basics.is_initialized
is_homogeneous = _basics.is_homogeneous
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
