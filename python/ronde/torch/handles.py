"""Operations that were started and are not over: what they keep in memory, and what they will return.

The engine works on addresses, so the tensors of an operation must stay alive until it has ended, whatever the caller
does with them. They are held by the core, under the number the engine gave, until :func:`synchronize`.
"""

from __future__ import annotations

import contextlib

from ronde import _core

__all__ = ["forget", "keep", "pending", "poll", "synchronize", "synchronize_all"]

keep = _core.keep
pending = _core.pending
synchronize = _core.synchronize
synchronize_all = _core.synchronize_all


def poll(handle: int) -> bool:
    """Tell whether an operation has ended, so that ``synchronize`` returns at once."""
    return _core.poll(handle)


def forget(handle: int) -> None:
    """Drop an operation whose result nobody wants; one that is not over keeps its tensors."""
    if _core.poll(handle):
        with contextlib.suppress(Exception):
            synchronize(handle)
