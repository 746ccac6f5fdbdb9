"""Data-parallel training on whatever machines you have.

One process a rank; the ranks are started by ``ronde run -np 4 python train.py``. A plain ``python train.py`` is a
job of size 1, so the same script runs anywhere:

>>> import ronde
>>> ronde.init()
>>> ronde.rank(), ronde.size()
(0, 1)

Collectives take NumPy arrays, PyTorch tensors, and anything else that offers the buffer protocol or ``__dlpack__``.
They block, and every rank has to call the same ones in the same order.
"""

from ronde._collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    reducescatter,
)
from ronde._core import __version__
from ronde._job import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from ronde.exceptions import HorovodInternalError

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "__version__",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "shutdown",
    "size",
]
