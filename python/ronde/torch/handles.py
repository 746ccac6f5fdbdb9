"""Operations that were started and are not over: what they keep in memory, and what they will return.

The engine works on addresses, so the tensors of an operation must stay alive until it has ended, whatever the caller
does with them. They are held here, under the number the engine gave, until :func:`synchronize`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from ronde import _core

__all__ = ["forget", "keep", "poll", "synchronize", "synchronize_all"]

# What to return, how to make it from what the engine answers (None: it is ready as it is), and what else to keep.
_Pending = tuple[Any, "Callable[[Any, Any], Any] | None", Any]
_pending: dict[int, _Pending] = {}


def keep(handle: int, result: Any, finish: Callable[[Any, Any], Any] | None, tensors: Any) -> int:
    """Hold the tensors of an operation until it has ended.

    ``finish(result, answer)`` makes the value that ``synchronize`` returns; without it that is ``result`` itself.
    """
    _pending[handle] = (result, finish, tensors)
    return handle


def poll(handle: int) -> bool:
    """Tell whether an operation has ended, so that ``synchronize`` returns at once."""
    return _core.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait until an operation has ended and return its result; ``None`` for a handle that is not known.

    Raises ``HorovodInternalError`` if the operation failed, on this rank or on another.
    """
    pending = _pending.get(handle)
    if pending is None:
        return None
    try:
        answer = _core.wait(handle)
    except BaseException:
        # Whatever a signal handler raised, the operation goes on, and its tensors are still needed.
        if _core.poll(handle):
            _pending.pop(handle, None)
        raise
    if _pending.pop(handle, None) is None:
        # Another thread waited for the same handle and has the result.
        return None
    result, finish, _ = pending
    return result if finish is None else finish(result, answer)


def synchronize_all(handles: Iterable[int]) -> list[Any]:
    """Wait for several operations; if some fail, raise the first error once all have ended."""
    results, failure = [], None
    for handle in handles:
        try:
            results.append(synchronize(handle))
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


def forget(handle: int) -> None:
    """Drop an operation whose result nobody wants; one that is not over keeps its tensors."""
    if _core.poll(handle):
        with contextlib.suppress(Exception):
            synchronize(handle)
