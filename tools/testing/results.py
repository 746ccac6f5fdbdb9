"""Reads the logs of test runners: how many tests passed, which failed, and with which assertion.

Three formats are known: pytest's short summary, the output of Rust's test harness, and the errors of the compiler. What
is in none of them (a shell script that ended with an error) is represented by its last lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_PYTEST_LAST = re.compile(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s")
_PYTEST_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)")
_PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+(?: \S+)*?)(?: - (.*))?$")
_RUST_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
_RUST_FAILED = re.compile(r"^---- (.+) stdout ----$")
_RUST_PANIC = re.compile(r"^thread '.*' (?:\(\d+\) )?panicked at (.+):$")
_RUST_RUNNING = re.compile(r"^\s+(?:Running|Doc-tests) (.+)$")
_COMPILER_ERROR = re.compile(r"^error(?:\[E\d+\])?: ")

LAST_LINES = 12


@dataclass
class Counts:
    """How many tests ran, by outcome. An error in a fixture counts as a failure."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


@dataclass
class Failure:
    """A test that failed, or a step that did; and why."""

    name: str
    why: list[str] = field(default_factory=list)


def counts(log: str) -> Counts:
    """Add up the closing lines of all test runners in a log."""
    total = Counts()
    for line in log.splitlines():
        if found := _RUST_RESULT.match(line):
            passed, failed, skipped = map(int, found.groups())
            total += Counts(passed, failed, skipped)
        elif found := _PYTEST_LAST.match(line):
            by_outcome = {outcome.rstrip("s"): int(count) for count, outcome in _PYTEST_COUNT.findall(found[1])}
            failed = by_outcome.get("failed", 0) + by_outcome.get("error", 0)
            total += Counts(by_outcome.get("passed", 0), failed, by_outcome.get("skipped", 0))
    return total


def failures(step: str, log: str) -> list[Failure]:
    """Return the failed tests of a step that failed, or else one failure with the reason that the log gives."""
    lines = log.splitlines()
    found = [*_pytest_failures(lines), *_rust_failures(lines)]
    if not found:
        errors = [line for line in lines if _COMPILER_ERROR.match(line)]
        last = [line for line in lines if line.strip()][-LAST_LINES:]
        found = [Failure(step, errors[:LAST_LINES] or last)]
    return found


def _pytest_failures(lines: list[str]) -> Iterator[Failure]:
    starts = [number for number, line in enumerate(lines) if "short test summary info" in line]
    for line in lines[starts[-1] + 1 :] if starts else []:
        if found := _PYTEST_FAILED.match(line):
            yield Failure(found[1], [found[2]] if found[2] else [])


def _rust_failures(lines: list[str]) -> Iterator[Failure]:
    executable = ""
    for number, line in enumerate(lines):
        if found := _RUST_RUNNING.match(line):
            executable = found[1]
        elif found := _RUST_FAILED.match(line):
            yield Failure(f"{found[1]} ({executable})" if executable else found[1], _panic(lines[number + 1 :]))


def _panic(lines: list[str]) -> list[str]:
    """Return where the first panic of a test was, and its message."""
    for number, line in enumerate(lines):
        if _RUST_FAILED.match(line):
            break
        if found := _RUST_PANIC.match(line):
            message = lines[number + 1 : number + 1 + LAST_LINES]
            end = next((at for at, text in enumerate(message) if not text or text.startswith("note: ")), len(message))
            return [f"{found[1]}:", *message[:end]]
    return []
