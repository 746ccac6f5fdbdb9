"""One run: a unit, idle or beside busy loops, until it has ended or the campaign is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from campaign import processes
from campaign.schedule import Kind, Mode
from campaign.supervise import Ended
from campaign.units import Unit

BUSY_LOOPS = 4
BUSY_LOOP = ["sh", "-c", "while :; do :; done"]
SUPERVISE = Path(__file__).with_name("supervise.py")


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds."""

    run: float = 1800.0
    """A run of one executable or file. The longest ones take a few minutes on two idle cores, and several times as long
    beside four busy loops; a single job of tests/tensorflow may take ten minutes by its own limit."""
    grace: float = 20.0
    """How long processes may stay after the end of their run. A guardian gives ranks four seconds to end, and tests of
    the launcher give it 15 on a busy machine."""


class StoppedError(Exception):
    """A signal has stopped the campaign."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep the processor busy with so many processes; they end with this one, however it ends."""
    own = os.getpid()
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            loops.append(
                subprocess.Popen(
                    BUSY_LOOP,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    preexec_fn=lambda: processes.die_with(own, signal.SIGKILL),
                )
            )
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def stop_if_asked() -> None:
    """Raise if a signal to stop has come; `processes.block` has to have been called."""
    arrived = signal.sigtimedwait(processes.STOPS, 0)
    if arrived is not None:
        raise StoppedError(arrived.si_signo)


def run(unit: Unit, mode: Mode, limits: Limits, log: Path) -> Ended:
    """Run a unit once; what it prints goes to the log."""
    log.write_bytes(b"")
    options = ["--parent", os.getpid(), "--limit", limits.run, "--grace", limits.grace, "--log", log]
    if unit.kind is Kind.PYTHON:
        options.append("--python")
    command = [sys.executable, SUPERVISE, *options, "--", *unit.command]
    with busy_loops(BUSY_LOOPS if mode is Mode.LOAD else 0):
        supervisor = subprocess.Popen(
            [str(word) for word in command],
            cwd=unit.folder,
            env={**os.environ, **dict(unit.environment)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        return _await(supervisor)


def _await(supervisor: subprocess.Popen[bytes]) -> Ended:
    while supervisor.poll() is None:
        number = signal.sigwait(processes.WAITED_FOR)
        if number in processes.STOPS:
            supervisor.terminate()
            supervisor.wait()
            raise StoppedError(number)
    assert supervisor.stdout is not None
    with supervisor.stdout as output:
        said = output.read()
    if supervisor.returncode != 0:
        raise RuntimeError(f"the supervisor of a run has ended with status {supervisor.returncode}")
    result = json.loads(said)
    return Ended(**{**result, "left": tuple(result["left"])})
