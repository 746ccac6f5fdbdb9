"""Starts the programs of this folder as ranks of jobs, and returns what they print.

All jobs are started by `ronde run`, those of Gloo as well: a launcher has no part in what is measured, and this one
leaves nothing behind. Ranks print JSON lines; whatever else they say is told when the job fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.environment import BENCH, SetupError
from harness.figures import Line
from harness.jobs import JobError

# The longest job takes half a minute; a machine with a GPU is too dear to wait for one that hangs.
DEADLINE_SECONDS = 120.0
GRACE_SECONDS = 10.0
LAST_LINES = 25
# The launcher says before each line whose it is.
LABEL = re.compile(r"^\[(\d+)\] ")

# What every job has unless it says otherwise, whatever the user's shell has.
USUAL = {"RONDE_GPU_PATH": "auto", "RONDE_MPS": "", "HOROVOD_ELASTIC": "", "PYTHONUNBUFFERED": "1"}


class EarlyEndError(JobError):
    """A job did not come to its end; the lines are those that its ranks had printed by then."""

    def __init__(self, message: str, lines: list[Line]) -> None:
        super().__init__(message)
        self.lines = lines


@dataclass(frozen=True)
class Launcher:
    """What starts jobs: the launcher, the folder in which `import horovod` is found, and a Python that sees a GPU."""

    ronde: Path
    site: Path
    python: Path

    def run(
        self,
        ranks: int,
        program: str,
        words: Sequence[object],
        variables: Mapping[str, str],
        tell: Callable[[Line], None],
        flags: Sequence[str] = (),
    ) -> list[Line]:
        """Run a program of this folder as so many ranks and return the lines of all; `tell` hears rank 0's at once.

        The flags are for the launcher.
        """
        command = [self.ronde, "run", "-np", ranks, *flags, self.python, "-m", f"gpu.{program}", *words]
        path = os.pathsep.join([str(BENCH), str(self.site)])
        environment = {**os.environ, **USUAL, "PYTHONPATH": path, **variables}
        return follow([str(word) for word in command], environment, tell)


def look(python: Path) -> dict[str, str]:
    """Return what a Python has to measure with: the GPU, PyTorch and so on. That there is no GPU is an error."""
    command, environment = [str(python), "-m", "gpu.look"], {**os.environ, "PYTHONPATH": str(BENCH)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SetupError(f"{python} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        raise SetupError(done.stderr.strip().rpartition("\n")[2] or f"{python} cannot look for a GPU")
    return json.loads(done.stdout)


def follow(
    command: list[str],
    environment: Mapping[str, str],
    tell: Callable[[Line], None],
    deadline: float = DEADLINE_SECONDS,
) -> list[Line]:
    """Run a job to its end, and return the lines of JSON that its ranks print."""
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()

    timer = threading.Timer(deadline, give_up)
    timer.daemon = True
    timer.start()
    lines: list[Line] = []
    said: list[str] = []
    try:
        assert process.stdout is not None
        for text in process.stdout:
            found = line_of(text)
            if found is None:
                said.append(text.rstrip())
                continue
            lines.append(found)
            if found["rank"] == 0:
                tell(found)
        status = process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            process.terminate()
    if late.is_set() or status != 0:
        how = f"did not end within {deadline:.0f} s" if late.is_set() else f"failed with status {status}"
        words = "\n  ".join(said[-LAST_LINES:]) or "it said nothing"
        raise EarlyEndError(f"{' '.join(command)} {how}:\n  {words}", lines)
    return lines


def line_of(text: str) -> Line | None:
    """Return the JSON that a rank printed as a line of its own, with its rank; nothing for any other line."""
    label = LABEL.match(text)
    if label is None or not text.startswith('{"work"', label.end()):
        return None
    try:
        return {"rank": int(label[1]), **json.loads(text[label.end() :])}
    except json.JSONDecodeError:
        return None
