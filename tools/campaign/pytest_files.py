"""The test files of `suites.py`: which there are, what has to be set up for them, and how they run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from campaign.fingerprints import modules_of
from campaign.schedule import Kind
from campaign.units import PrepareError, Unit, output_of
from suites import ROOT, SUITES, Group, Suite, files


@dataclass(frozen=True)
class PythonFile:
    """A test file and its suite."""

    name: str
    """Its path in the repository."""
    suite: Suite


def python_files() -> list[PythonFile]:
    """Return the test files of all suites."""
    return [PythonFile(str(file.relative_to(ROOT)), suite) for suite in SUITES for file in files(suite)]


def set_up(wanted: Sequence[PythonFile]) -> tuple[list[Unit], list[str]]:
    """Set up what these files need; return how to run them, and a line for each suite that cannot run here."""
    left_out: list[str] = []
    able: list[Suite] = []
    for suite in dict.fromkeys(file.suite for file in wanted):
        reason = _prepared(suite)
        if reason:
            left_out.append(f"left out: suite {suite.name}: {reason}")
        else:
            able.append(suite)
    environments = dict.fromkeys(suite.environments[0] for suite in able)
    if environments:
        output_of(["make", "--no-print-directory", *(f"target/env/{name}/.installed" for name in environments)])
    return [unit(file) for file in wanted if file.suite in able], left_out


def _prepared(suite: Suite) -> str:
    """Install and build what a suite needs; return why it cannot run here, or nothing."""
    if suite.root and os.geteuid() != 0:
        return f"needs root ({suite.reason})"
    try:
        go = ["go"] if suite.group is Group.SYSTEM else []
        output_of(["tools/setup", "test", suite.group.value, *go])
        for step in suite.setup:
            output_of(["bash", "-c", step.command])
    except PrepareError as error:
        return str(error)
    return ""


def unit(file: PythonFile) -> Unit:
    """Return how to run a test file, in the newest environment of its suite."""
    environment = ROOT / "target" / "env" / file.suite.environments[0]
    packages = "lib/python*/site-packages"
    installed = [
        *environment.glob(f"{packages}/ronde-*.dist-info/RECORD"),
        # Names the environment of the cache, whose name has a hash of all pins.
        *environment.glob(f"{packages}/pins.pth"),
    ]
    return Unit(
        name=file.name,
        kind=Kind.PYTHON,
        command=(str(environment / "bin" / "python"), "-m", "pytest", file.name, "-q"),
        folder=ROOT,
        inputs=(*modules_of(ROOT / file.name), *sorted(installed)),
    )
