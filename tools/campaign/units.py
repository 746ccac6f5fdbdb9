"""What a campaign runs: a test executable or a test file, with all that is needed to run it once more."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.schedule import Kind
from suites import ROOT


@dataclass(frozen=True)
class Unit:
    """A test executable or a test file."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    folder: Path
    """Where it runs."""
    inputs: tuple[Path, ...]
    """The files whose contents a run counts for."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that are added."""


class PrepareError(Exception):
    """A build or another preparation failed; the message says which."""


def output_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command in the root of the repository and return what it prints; complaints go to the terminal."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise PrepareError(f"this failed with status {done.returncode}: {' '.join(command)}")
    return done.stdout
