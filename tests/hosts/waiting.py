"""Waiting for what takes a moment and has no event that another process could wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

# Longer than anything may take that tests wait for, on a machine that has other things to do.
PATIENCE = 60.0


def eventually(
    look: Callable[[], Found | None], complaint: str | Callable[[], str], seconds: float = PATIENCE
) -> Found:
    """Look again and again until there is something to return; fail with the complaint after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            words = complaint if isinstance(complaint, str) else complaint()
            raise AssertionError(f"waited {seconds:g} s in vain: {words}")
        time.sleep(0.01)  # sleep: between two looks
    return found
