"""The process around one run of a test: starts it in a session of its own, and ends whatever it leaves.

    supervise.py --parent PID --limit SECONDS --grace SECONDS --log FILE [--python] -- COMMAND...

It is the parent of every orphan of the run, so it knows what is still there when the run has ended. What has not gone
after the grace period is killed and reported, and so is everything if the run exceeds its time limit. If the campaign
ends, however that happens, the run ends, too. The last line of standard output is the result, in JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from campaign import processes

DUMP_SECONDS = 60.0
"""How long a debugger may take to print stacks, and a Python process to print its own and end."""


@dataclass(frozen=True)
class Ended:
    """How a run has ended."""

    status: int
    """The exit status, or the negative number of the signal that ended it."""
    seconds: float
    hung: bool
    """It was killed, since it exceeded its time limit."""
    left: tuple[str, ...]
    """The processes that it left and that had not gone after the grace period: process ids and command lines."""


class StoppedError(Exception):
    """The campaign was stopped or has ended."""


class Supervisor:
    """A command that runs, and its descendants."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log.open("ab")
        self.started = time.monotonic()
        own = os.getpid()

        def prepare() -> None:
            processes.die_with(own, signal.SIGKILL)
            processes.restore_signals()

        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            preexec_fn=prepare,
        )
        self.pid = process.pid
        self.status: int | None = None
        # This class waits for all children, adopted ones included.
        process.returncode = 0

    def ended(self) -> bool:
        """Whether the command itself has ended."""
        return self.status is not None

    def nothing_left(self) -> bool:
        """Wait for the children that have ended, without blocking, and tell whether those were all."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self.pid:
                    self.status = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return True

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds, which can only change when a child ends; tell whether it did in time."""
        deadline = time.monotonic() + seconds
        while True:
            # In this order, since every check of a condition has to see all children that have ended.
            nothing_left = self.nothing_left()
            if condition() or nothing_left:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            arrived = signal.sigtimedwait(processes.WAITED_FOR, left)
            if arrived is not None and arrived.si_signo in processes.STOPS:
                raise StoppedError

    def left(self) -> list[str]:
        """Return the living descendants, a line each."""
        return [f"{pid} {processes.words_of(pid)}" for pid in processes.descendants(os.getpid())]

    def kill_all(self) -> None:
        """Kill all descendants and wait for their end."""
        while not self.nothing_left():
            for pid in processes.descendants(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    # It has ended meanwhile.
                    continue
            # What was started while the list was made is killed in the next round.
            signal.sigtimedwait({signal.SIGCHLD}, 0.1)

    def note(self, text: str) -> None:
        """Add a line to the log of the run."""
        self.log.write(f"flakes: {text}\n".encode())
        self.log.flush()

    def dump(self, python: bool) -> None:
        """Write to the log what every process of the run is doing, and the stacks of the first."""
        for pid in processes.descendants(os.getpid()):
            self.note(f"process {pid}: {processes.words_of(pid)}")
            for line in processes.threads_of(pid):
                self.note(f"    thread {line}")
        if python:
            # pytest prints the stacks of all threads at this signal, and ends.
            os.kill(self.pid, signal.SIGABRT)
            self.wait(self.ended, DUMP_SECONDS)
        elif shutil.which("gdb"):
            self.stacks()

    def stacks(self) -> None:
        """Have the debugger write the stacks of the command to the log."""
        command = ["gdb", "--batch", "--nx", "--pid", str(self.pid), "--eval-command", "thread apply all backtrace"]
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                timeout=DUMP_SECONDS,
                check=False,
                preexec_fn=processes.restore_signals,
            )
        except subprocess.TimeoutExpired:
            self.note("the debugger took too long")


def supervise(command: list[str], log: Path, limit: float, grace: float, python: bool) -> Ended:
    """Run a command to its end, and end what it leaves."""
    run = Supervisor(command, log)
    left: list[str] = []
    try:
        in_time = run.wait(run.ended, limit)
        seconds = time.monotonic() - run.started
        if not in_time:
            run.note(f"killed after {limit:g} s")
            run.dump(python)
        elif not run.wait(lambda: False, grace):
            left = run.left()
    finally:
        run.kill_all()
    for line in left:
        run.note(f"left after {grace:g} s: {line}")
    # Everything has ended, so the command has, too.
    assert run.status is not None
    return Ended(run.status, round(seconds, 3), not in_time, tuple(left))


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--limit", type=float, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--python", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    processes.block()
    processes.become_subreaper()
    processes.die_with(options.parent, signal.SIGTERM)
    try:
        ended = supervise(options.command, options.log, options.limit, options.grace, options.python)
    except StoppedError:
        return 1
    except OSError as error:
        # As a shell says it: the command could not be started.
        options.log.write_text(f"flakes: {error}\n")
        ended = Ended(127, 0.0, False, ())
    print(json.dumps(asdict(ended)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
