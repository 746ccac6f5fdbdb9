"""Joining and leaving the job, with programs that may still be running.

JAX returns from a call while the program runs. A rank that leaves meanwhile would be missed by the others in the
collectives that are left, so leaving waits for those; unless it is an exception that ends this process, since then the
others may never come to them.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from typing import Any

from ronde._basics import basics
from ronde.jax import _effects

__all__ = ["init", "shutdown"]


def init(comm: list[int] | None = None, process_sets: Any = None) -> None:
    """Join the job that started this process; without one, become a job of size 1.

    ``process_sets`` is a list of :class:`ProcessSet` to register, the same on every rank, or ``"dynamic"``, which
    allows ``add_process_set`` later. ``comm`` is for MPI and means nothing here. Does nothing if this process has
    joined already.

    >>> import ronde.jax as hvd
    >>> hvd.init()
    """
    basics.init(comm, process_sets)
    # Handlers run in reverse order, and this one has to run before the job ends.
    atexit.unregister(_leave)
    atexit.register(_leave)


def shutdown() -> None:
    """Leave the job once all programs of this thread have ended. ``init`` may be called again afterwards.

    >>> import ronde.jax as hvd
    >>> hvd.init(); hvd.shutdown(); hvd.is_initialized()
    False
    """
    # What has failed was, or will be, told where its result is asked for.
    with contextlib.suppress(Exception):
        _effects.settle()
    basics.shutdown()


def _leave() -> None:
    if hasattr(sys, "last_value"):
        basics.shutdown()
    shutdown()
