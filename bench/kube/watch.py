"""When something came about in a cluster, seen from outside: by a watch, the same for every manager."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from testbed.access import Api

from harness.jobs import JobError

DELETED = "deleted"
A_DAY = 24 * 60 * 60

# By an object's name, when each of its states was seen first, in seconds of `time.perf_counter`.
Seen = Mapping[str, Mapping[str, float]]


class Watch:
    """Keeps when each object of a collection was first seen in each of its states. It ends with the cluster."""

    def __init__(self, api: Api, path: str, states: Callable[[dict[str, Any]], Iterable[str]]) -> None:
        self._states = states
        self._seen: dict[str, dict[str, float]] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._changed = threading.Condition()
        self._ended: Exception | None = None
        # What is there already is told first, so nothing can be missed between asking and watching.
        self._events = api.follow(path, A_DAY)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        try:
            for event in self._events:
                now = time.perf_counter()
                with self._changed:
                    self._note(event, now)
                    self._changed.notify_all()
            raise JobError("the watch has ended")
        except Exception as error:  # Whatever it is, those who wait must know.
            with self._changed:
                self._ended = error
                self._changed.notify_all()

    def _note(self, event: dict[str, Any], now: float) -> None:
        found = event["object"]
        name = found["metadata"]["name"]
        self._labels[name] = found["metadata"].get("labels", {})
        states = self._seen.setdefault(name, {})
        for state in [*self._states(found), *([DELETED] if event["type"] == "DELETED" else [])]:
            states.setdefault(state, now)

    def wait(
        self, what: str, enough: Callable[[Seen], bool], seconds: float, check: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until what was seen is enough; `check` raises when it will never be."""
        end = time.monotonic() + seconds
        with self._changed:
            while not enough(self._seen):
                if self._ended is not None:
                    raise JobError(f"{what}: {self._ended}")
                if time.monotonic() > end:
                    raise JobError(f"waited {seconds:g} s in vain: {what}")
                check()
                self._changed.wait(1.0)

    def all(self) -> Seen:
        """Return what was seen of all objects."""
        with self._changed:
            return {name: dict(states) for name, states in self._seen.items()}

    def seen(self, label: str, value: str) -> Seen:
        """Return what was seen of objects with this label."""
        with self._changed:
            return {name: dict(states) for name, states in self._seen.items() if self._labels[name].get(label) == value}


def pod_states(pod: dict[str, Any]) -> list[str]:
    """Return a pod's phase."""
    return [pod["status"].get("phase", "Pending")]
