"""What goes wrong with a test cluster, in words, and waiting for what takes a moment."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Found = TypeVar("Found")


class ClusterError(Exception):
    """The cluster, or a part of it, does not do what it should; the message says which and what it said."""


def run(words: Sequence[object], env: Mapping[str, str] | None = None, **options: Any) -> str:
    """Run a command to its end and return what it printed; raise if it failed."""
    texts = [str(word) for word in words]
    done = subprocess.run(texts, capture_output=True, text=True, check=False, env=env, **options)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise ClusterError(f"`{' '.join(texts)}` failed with status {done.returncode}: {said}")
    return str(done.stdout)


def wait_for(
    what: str | Callable[[], str],
    look: Callable[[], Found | None],
    seconds: float = 60.0,
    check: Callable[[], None] = lambda: None,
) -> Found:
    """Look until there is something to see, and return it; raise with `what` was waited for when time is up.

    A function may say what it was, and how far it is. `check` raises when it will never come.
    """
    end = time.monotonic() + seconds
    while True:
        check()
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            words = what if isinstance(what, str) else what()
            raise ClusterError(f"waited {seconds:g} s in vain: {words}")
        time.sleep(0.05)  # sleep: between two looks
