"""Which tests failed in a run, from its end and from what it printed."""

from __future__ import annotations

import re
import signal

from campaign.schedule import Kind
from campaign.supervise import Ended

# libtest's own lines; tests without it print the same ones. A child of a test may print between their two halves, so
# the list at the end counts as well.
RUST_LINE = re.compile(r"^test (.+) \.\.\. FAILED", re.MULTILINE)
RUST_LIST = re.compile(r"^failures:\n((?:    \S.*\n)+)", re.MULTILINE)
RUST_LONG = re.compile(r"^test (.+) has been running for over \d+ seconds", re.MULTILINE)
RUST_DONE = re.compile(r"^test (.+) \.\.\. (?:ok|ignored|FAILED)", re.MULTILINE)
# Python's stacks have the innermost call first.
PYTHON_STACK = re.compile(r'^  File ".*", line \d+ in (test_\w+)$', re.MULTILINE)
# pytest's short summary.
PYTHON_LINE = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?|\S+\.py)(?: - .*)?$", re.MULTILINE)


def failures(kind: Kind, ended: Ended, output: str) -> list[str]:
    """Return the names of the tests that failed, or in parentheses what failed instead; nothing if all is well."""
    if ended.hung:
        return [f"{name} (hung)" for name in _unfinished(kind, output)] or ["(hung)"]
    found = _named(kind, output) if ended.status != 0 else []
    if ended.status != 0 and not found:
        found = [f"({_reason(ended.status)})"]
    return [*found, "(left processes)"] if ended.left else found


def _named(kind: Kind, output: str) -> list[str]:
    if kind is Kind.PYTHON:
        return _unique(PYTHON_LINE.findall(output))
    listed = [line.strip() for block in RUST_LIST.findall(output) for line in block.splitlines()]
    return _unique([*RUST_LINE.findall(output), *listed])


def _unfinished(kind: Kind, output: str) -> list[str]:
    if kind is Kind.PYTHON:
        return _unique(PYTHON_STACK.findall(output))
    done = set(RUST_DONE.findall(output))
    return [name for name in _unique(RUST_LONG.findall(output)) if name not in done]


def _reason(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal.Signals(-status).name}"


def _unique(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))
