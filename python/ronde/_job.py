"""Joining and leaving the job, and this process' place in it."""

import atexit
import os

from ronde import _core

os.register_at_fork(after_in_child=_core.after_fork_in_child)


def init() -> None:
    """Join the job that started this process; without one, become a job of size 1.

    Waits until all ranks are there. Does nothing if this process has joined already; ``shutdown`` is called at exit.

    >>> import ronde
    >>> ronde.init()
    """
    _core.init()
    atexit.unregister(_core.shutdown)
    atexit.register(_core.shutdown)


def shutdown() -> None:
    """Leave the job, for which no other rank waits. Does nothing without a job.

    >>> import ronde
    >>> ronde.init(); ronde.shutdown(); ronde.is_initialized()
    False
    """
    _core.shutdown()


def is_initialized() -> bool:
    """Tell whether this process is in a job.

    >>> import ronde
    >>> ronde.init(); ronde.is_initialized()
    True
    """
    return _core.is_initialized()


def rank() -> int:
    """Return the number of this process in the job, from 0 on.

    >>> import ronde
    >>> ronde.init(); ronde.rank()
    0
    """
    return _core.place()[0]


def size() -> int:
    """Return the number of processes in the job.

    >>> import ronde
    >>> ronde.init(); ronde.size()
    1
    """
    return _core.place()[1]


def local_rank() -> int:
    """Return the number of this process among those of its host; often the GPU to use.

    >>> import ronde
    >>> ronde.init(); ronde.local_rank()
    0
    """
    return _core.place()[2]


def local_size() -> int:
    """Return the number of processes of the job on this host.

    >>> import ronde
    >>> ronde.init(); ronde.local_size()
    1
    """
    return _core.place()[3]


def cross_rank() -> int:
    """Return the number of this host among those that have a process with the same local rank.

    >>> import ronde
    >>> ronde.init(); ronde.cross_rank()
    0
    """
    return _core.place()[4]


def cross_size() -> int:
    """Return the number of hosts that have a process with the same local rank.

    >>> import ronde
    >>> ronde.init(); ronde.cross_size()
    1
    """
    return _core.place()[5]
