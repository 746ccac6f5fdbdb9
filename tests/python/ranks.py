"""Runs a function of a test module on real ranks, through the installed ``ronde run``.

The ranks import the module and call the function, so what they do is ordinary code beside its test. A rank fails by
raising, as an assertion does; the job's status and everything it printed come back.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
# Ends jobs that hang, and none on a machine that is busy with other things.
LIMIT = 300.0
# For ranks that ignore the launcher's request to end, since they want to see the error first: none is killed before.
NO_KILL = ["--grace", "600"]


class Finished(NamedTuple):
    """A job that has ended."""

    status: int
    output: str

    def lines_of(self, rank: int) -> list[str]:
        """Return what a rank printed."""
        prefix = f"[{rank}] "
        return [line[len(prefix) :] for line in self.output.splitlines() if line.startswith(prefix)]


def search_path(*folders: Path) -> str:
    """Return what ranks import from: these folders, and what ``tests/gpu/run.py`` names in place of an environment."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("RONDE_TEST_PATH")]))


def await_that(what: str, is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so; it has no event that another process could wait for."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.01)  # sleep: between two looks


def launch(ranks: int, command: list[str], timeout: float = LIMIT, **variables: str) -> Finished:
    """Run a command on some ranks of this machine and return when the job has ended."""
    environment = {**os.environ, "PYTHONPATH": search_path(HERE), "PYTHONUNBUFFERED": "1", **variables}
    ronde = os.environ.get("RONDE_TEST_LAUNCHER") or Path(sys.executable).with_name("ronde")
    done = subprocess.run(
        [ronde, "run", "-np", str(ranks), *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Finished(done.returncode, done.stdout)


def on_ranks(
    ranks: int, function: Callable[[], None], timeout: float = LIMIT, options: Sequence[str] = (), **variables: str
) -> Finished:
    """Run a function on some ranks; it finds the variables in its environment. The options are the launcher's."""
    call = f"from {function.__module__} import {function.__name__} as program; program()"
    return launch(ranks, [*options, sys.executable, "-c", call], timeout, **variables)


def all_ranks_pass(ranks: int, function: Callable[[], None], **variables: str) -> None:
    """Run a function on some ranks, none of which may fail."""
    done = on_ranks(ranks, function, **variables)
    assert done.status == 0, done.output
