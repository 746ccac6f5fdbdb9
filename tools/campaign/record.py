"""What is kept between campaigns, in the user's cache: a line for each run, and the logs of those that failed.

    runs.jsonl          a line for each run that ended
    fingerprints.json   what was tested last, by the name of the unit
    logs/               the output of each failed run
    running.log         that of the run in progress
    lock                held by the campaign in progress, whose process id it has

Lines are only added, so a campaign that is killed loses at most the run in progress. A line that was cut short, as when
the machine fails, does not count.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class BusyError(Exception):
    """Another campaign runs."""


@dataclass(frozen=True)
class Run:
    """A run that ended."""

    name: str
    mode: str
    fingerprint: str
    commit: str
    ended: str
    """When, in UTC."""
    seconds: float
    failures: tuple[str, ...] = ()
    """The tests that failed."""
    log: str = ""
    """The path of the output, if something failed."""


def default_folder() -> Path:
    """Return where the user's record is: beside what tools/cache.sh keeps."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("RONDE_CACHE") or Path(base, "ronde"), "flakes")


class Record:
    """The folder of a record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running_log = folder / "running.log"
        self._lines = folder / "runs.jsonl"
        self._fingerprints = folder / "fingerprints.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other campaigns out, since they would be load for this one and mix up its counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise BusyError(f"`make flakes` runs already (process {lock.read().strip()})") from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def runs(self) -> list[Run]:
        """Return all runs, the oldest first."""
        if not self._lines.exists():
            return []
        *lines, cut_short = self._lines.read_text(encoding="utf-8").split("\n")
        del cut_short
        return [run for run in map(_run, lines) if run]

    def add(self, run: Run) -> None:
        """Add a run. What another one may have left half written ends before it."""
        self._lines.touch()
        with self._lines.open("rb+") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - 1))
            whole = lines.read() in (b"", b"\n")
            lines.write((b"" if whole else b"\n") + json.dumps(asdict(run)).encode() + b"\n")
            lines.flush()
            os.fsync(lines.fileno())

    def keep_log(self, name: str, mode: str, ended: str) -> str:
        """Keep the output of the run that has just ended, and return its path."""
        words = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{ended} {name} {mode}")
        kept = self.folder / "logs" / f"{words}.log"
        kept.parent.mkdir(exist_ok=True)
        self.running_log.rename(kept)
        return str(kept)

    def fingerprints(self) -> dict[str, str]:
        """Return what was tested last, by the name of the unit."""
        if not self._fingerprints.exists():
            return {}
        return dict(json.loads(self._fingerprints.read_text(encoding="utf-8")))

    def note_fingerprints(self, found: Mapping[str, str]) -> None:
        """Note what is tested from now on."""
        _replace(self._fingerprints, json.dumps({**self.fingerprints(), **found}, indent=1, sort_keys=True))

    def forget(self, chosen: Callable[[str], bool]) -> None:
        """Forget the runs and logs of the units whose names are chosen."""
        runs = self.runs()
        kept = [run for run in runs if not chosen(run.name)]
        if self._lines.exists():
            _replace(self._lines, "".join(json.dumps(asdict(run)) + "\n" for run in kept))
        for run in runs:
            if run.log and chosen(run.name):
                Path(run.log).unlink(missing_ok=True)


def _run(line: str) -> Run | None:
    try:
        fields: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return Run(**{**fields, "failures": tuple(fields["failures"])})


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
