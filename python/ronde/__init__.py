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

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from ronde._run import run

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
    "run",
    "shutdown",
    "size",
]


def __getattr__(name: str) -> Any:
    # Only those who start jobs need it, and ranks should not wait for what it imports.
    if name == "run":
        from ronde._run import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic ``%%ronde`` to IPython; what ``%load_ext ronde`` calls."""
    from ronde import _notebook

    _notebook.register(shell)
