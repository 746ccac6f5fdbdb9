"""Joining and leaving the job, and this process' place in it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from ronde import _core
from ronde.exceptions import HorovodInternalError

os.register_at_fork(after_in_child=_core.after_fork_in_child)

# What fronts do before this process leaves its job: where a framework works in the background, the other ranks may wait
# for what it has not sent yet.
before_leaving: list[Callable[[], None]] = []

# The thread that answers other ranks' questions, while there is a job.
_answering: threading.Thread | None = None


def init(process_sets: list[list[int]] | None = None, dynamic: bool = False) -> None:
    """Join the job that started this process; without one, become a job of size 1.

    Waits until all ranks are there. ``process_sets`` are registered on the way, the same ones on every rank; with
    ``dynamic`` more may be added later. Does nothing if this process has joined already; ``shutdown`` is called at
    exit.

    >>> import ronde
    >>> ronde.init()
    """
    if _core.is_initialized():
        return
    _core.init(process_sets, dynamic)
    atexit.unregister(shutdown)
    atexit.register(shutdown)
    if _core.place()[1] > 1:
        global _answering
        _tell_others_of_exceptions()
        _answering = threading.Thread(target=_answer, args=(_core.inquiries(),), name="ronde-answers", daemon=True)
        _answering.start()


def _tell_others_of_exceptions() -> None:
    """Have an exception that ends this process reach the other ranks before its exit handlers run."""
    previous = sys.excepthook
    if getattr(previous, "tells_other_ranks", False):
        return

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        # Whoever fails because another rank did has nothing new to say.
        if not issubclass(kind, (HorovodInternalError, KeyboardInterrupt)):
            _core.fail(_in_words(kind, value, trace))
        previous(kind, value, trace)

    hook.tells_other_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _in_words(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
    return f"it raised {kind.__name__}: {value}{where}"


def _answer(inquiries: Any) -> None:
    """Tell ranks that have waited long for this one what it is doing."""
    while (process_set := inquiries.next()) is not None:
        _core.answer_inquiry(process_set, _whereabouts())


def _whereabouts() -> str:
    """Return the innermost lines of the main thread that belong to the script, and how busy the process is."""
    innermost = frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and "site-packages" in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
    place = "its main thread has ended"
    if frame is not None and innermost is not None:
        place = f"is in {innermost.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
    began, used = time.monotonic(), time.process_time()
    time.sleep(0.1)
    busy = 100 * (time.process_time() - used) / (time.monotonic() - began)
    return f"{place}; its process uses {busy:.0f} % of a core"


def shutdown() -> None:
    """Leave the job, for which no other rank waits. Does nothing without a job.

    >>> import ronde
    >>> ronde.init(); ronde.shutdown(); ronde.is_initialized()
    False
    """
    global _answering
    if _core.is_initialized():
        for finish in before_leaving:
            finish()
    if not _core.shutdown():
        # The answering thread ends with the call that this one interrupts.
        return
    if _answering is not None:
        # A thread that wakes up while the interpreter ends would be torn from under native code.
        _answering.join()
    _answering = None


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
