"""Processes and signals, as the campaign and the supervisor of a run need them. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""The signals that stop a campaign."""
WAITED_FOR = STOPS | {signal.SIGCHLD}

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, signal_number: int) -> None:
    """Have this process get a signal when its parent ends; end now if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os._exit(1)


def block() -> None:
    """Let signals wait until they are asked for, so that none comes between two steps."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)


def restore_signals() -> None:
    """Undo `block` in a child, which would pass it on to its program, and what a shell in the background ignores."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED_FOR)


def descendants(ancestor: int) -> list[int]:
    """Return the children of a process, their children and so on; zombies are not among them."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            state, parent = _state(int(entry.name))
            if state not in "ZX":
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return sorted(found)


def _state(pid: int) -> tuple[str, int]:
    # The name is in parentheses and may hold anything, parentheses too.
    words = _content(pid, "stat").rpartition(")")[2].split()
    return (words[0], int(words[1])) if words else ("X", 0)


def words_of(pid: int) -> str:
    """Return the command line of a process, or its name if it has none."""
    return _content(pid, "cmdline").replace("\0", " ").strip()[:200] or f"({_content(pid, 'comm').strip()})"


def threads_of(pid: int) -> list[str]:
    """Return a line for each thread of a process: its name, its state, and where in the kernel it waits."""
    try:
        threads = sorted(int(entry.name) for entry in os.scandir(f"/proc/{pid}/task"))
    except OSError:
        return []
    return [
        f"{thread} {_content(thread, 'comm').strip()}: {_state(thread)[0]} {_content(thread, 'wchan') or '-'}"
        for thread in threads
    ]


def _content(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    except OSError:
        return ""
