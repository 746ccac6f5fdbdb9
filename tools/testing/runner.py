"""Runs steps: several at a time, each into a log of its own, with one line on the screen when it has ended.

``Runner.next_steps`` decides what starts, from values alone. A step starts when all steps that it needs have
succeeded, when no other uses the resources that it names, and when there is room. A step that needs a failed one is
not run. All others are, so that one run shows every failure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from testing import results

# No step takes nearly as long on two cores, downloads and builds of a new machine included. What does hangs.
LIMIT = 50 * 60.0
POLL = 0.1
# The signals that ask to end.
ENDING = (signal.SIGINT, signal.SIGTERM)


class EndRequestedError(Exception):
    """A signal asked to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass(frozen=True)
class Step:
    """A command, and what it needs."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    uses: frozenset[str] = frozenset()
    """Names of what only one step may use at a time."""
    alone: bool = False
    """Nothing may run at the same time."""
    tests: bool = False
    """It runs tests, so it must have run at least one."""
    variables: tuple[tuple[str, str], ...] = ()


@dataclass
class Running:
    """A step and its process, which leads a session."""

    step: Step
    process: subprocess.Popen[bytes]
    started: float


@dataclass(frozen=True)
class Outcome:
    """How a step ended."""

    ok: bool
    seconds: float = 0.0
    cpu: float = 0.0
    counts: results.Counts = field(default_factory=results.Counts)
    failures: tuple[results.Failure, ...] = ()


class Runner:
    """Steps with their states."""

    def __init__(self, steps: list[Step], logs: Path, room: int) -> None:
        names = [step.name for step in steps]
        if len(set(names)) != len(names):
            raise ValueError(f"two steps have one name: {sorted(names)}")
        for step in steps:
            if missing := set(step.needs) - set(names):
                raise ValueError(f"{step.name} needs {sorted(missing)}, which are no steps")
        self.waiting = list(steps)
        self.running: dict[int, Running] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.logs = logs
        self.room = room
        self.width = max(map(len, names), default=0)

    def next_steps(self) -> list[Step]:
        """Return what can start now, in the order of the list."""
        busy = [running.step for running in self.running.values()]
        chosen: list[Step] = []
        for step in self.waiting:
            active = busy + chosen
            if not all(need in self.outcomes and self.outcomes[need].ok for need in step.needs):
                continue
            if len(active) >= self.room or any(other.alone for other in active) or (step.alone and active):
                # What needs the machine for itself would wait forever if others could always go first.
                break
            if not any(step.uses & other.uses for other in active):
                chosen.append(step)
        return chosen

    def unreachable(self) -> list[Step]:
        """Return the steps that need one that failed."""
        failed = {name for name, outcome in self.outcomes.items() if not outcome.ok}
        return [step for step in self.waiting if failed & set(step.needs)]

    def run(self) -> bool:
        """Run all steps; say whether they succeeded. A signal that asks to end raises when all that runs has ended.

        It is only noted when it arrives: a step that has just been started would otherwise be left behind.
        """
        noted: list[int] = []
        previous = {number: signal.signal(number, lambda number, _: noted.append(number)) for number in ENDING}
        try:
            while self.waiting or self.running:
                if noted:
                    raise EndRequestedError(noted[0])
                for step in self.unreachable():
                    self._not_run(step)
                for step in self.next_steps():
                    self._start(step)
                if self.running:
                    self._reap()
        finally:
            for running in self.running.values():
                _end(running.process)
            for number, handler in previous.items():
                signal.signal(number, handler)
        return all(outcome.ok for outcome in self.outcomes.values())

    def _start(self, step: Step) -> None:
        self.waiting.remove(step)
        with self.log(step.name).open("wb") as log:
            # Ignored signals are inherited, but tests send some. So steps start with the defaults.
            process = subprocess.Popen(
                ["env", "--default-signal", *step.command],
                env={**os.environ, "COLUMNS": "200", **dict(step.variables)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[process.pid] = Running(step, process, time.monotonic())

    def _reap(self) -> None:
        """Wait a moment for the end of a step."""
        for pid, running in list(self.running.items()):
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            seconds = time.monotonic() - running.started
            if ended:
                del self.running[pid]
                running.process.returncode = os.waitstatus_to_exitcode(status)
                self._ended(running, seconds, usage.ru_utime + usage.ru_stime)
            elif seconds > LIMIT:
                with self.log(running.step.name).open("a") as log:
                    log.write(f"\nerror: this step took longer than {LIMIT / 60:.0f} minutes and was killed\n")
                os.killpg(pid, signal.SIGKILL)
        self._show_running()
        time.sleep(POLL)

    def _ended(self, running: Running, seconds: float, cpu: float) -> None:
        step, status = running.step, running.process.returncode
        log = self.log(step.name).read_text(errors="replace")
        counts = results.counts(log) if step.tests else results.Counts()
        failures: tuple[results.Failure, ...] = ()
        if status != 0:
            failures = tuple(results.failures(step.name, log))
        elif step.tests and not counts.passed:
            # A filter that matches nothing passes as well as one that matches everything.
            failures = (results.Failure(step.name, ["no test ran"]),)
        outcome = Outcome(not failures, seconds, cpu, counts, failures)
        self.outcomes[step.name] = outcome
        word = "ok" if outcome.ok else "FAILED"
        self._line(step.name, word, f"{took(seconds):>12}", str(counts) if step.tests else "")

    def _not_run(self, step: Step) -> None:
        self.waiting.remove(step)
        failed = [need for need in step.needs if need in self.outcomes and not self.outcomes[need].ok]
        self.outcomes[step.name] = Outcome(ok=False)
        self._line(step.name, "not run", " " * 12, f"needs {', '.join(failed)}")

    def _line(self, name: str, word: str, duration: str, remark: str) -> None:
        clear = "\r\x1b[K" if sys.stdout.isatty() else ""
        print(f"{clear}{word:<7}  {name:<{self.width}}  {duration}  {remark}".rstrip(), flush=True)

    def _show_running(self) -> None:
        """Where there is a terminal, show what runs, in a line that the next one replaces."""
        if sys.stdout.isatty():
            now = time.monotonic()
            parts = [f"{one.step.name} {took(now - one.started)}" for one in self.running.values()]
            print(f"\r\x1b[K... {', '.join(parts)}"[: os.get_terminal_size().columns + 3], end="", flush=True)

    def log(self, name: str) -> Path:
        """Return where the output of a step goes."""
        return self.logs / f"{name.replace(' ', '-')}.log"

    def run_and_report(self, quiet: bool = False) -> int:
        """Run all steps and return the exit status; print what failed and, unless `quiet`, totals as well."""
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            passed = self.run()
        except EndRequestedError as requested:
            return 128 + requested.number
        (self.logs / "profile.tsv").write_text("\n".join(self.profile()) + "\n")
        if not (quiet and passed):
            self.report()
        return 0 if passed else 1

    def report(self) -> None:
        """Print the failures with their reasons and logs, and how many tests passed."""
        for name, outcome in self.outcomes.items():
            for failure in outcome.failures:
                print(f"\nfailed: {failure.name}")
                for line in failure.why:
                    print(f"  {line}")
                print(f"  log: {self.log(name)}")
        total = sum((outcome.counts for outcome in self.outcomes.values()), results.Counts())
        cpu = sum(outcome.cpu for outcome in self.outcomes.values())
        print(f"\n{took(cpu)} of processor time; all output is in {self.logs}")
        if total.passed or total.failed:
            print(total)

    def profile(self) -> list[str]:
        """Return a table of where the time went, as tab-separated lines."""
        rows = sorted(self.outcomes.items(), key=lambda row: -row[1].cpu)
        return ["step\tseconds\tcpu", *(f"{name}\t{one.seconds:.1f}\t{one.cpu:.1f}" for name, one in rows)]


def took(seconds: float) -> str:
    """Write a duration as people do."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def shell(script: str) -> tuple[str, ...]:
    """Return the command that runs a line of bash."""
    return ("bash", "-euo", "pipefail", "-c", script)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step and all of its session that is still in its process group."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
