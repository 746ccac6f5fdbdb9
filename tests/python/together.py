"""Runs many checks in few jobs: importing a framework takes longer than most of them do.

``@on_ranks(2, 3)`` makes a test of a function that every rank of a job of 2, and of one of 3, calls. All selected
tests of a folder and size run in one job, one after the other. A check that fails ends its job, since the other ranks
cannot be in step any more; the checks after it go into another. A module ``prepare`` in the folder of the tests says
what a rank does first (``prepare.once()``) and before each check (``prepare.each()``).

The other half of this file is what the ranks run: ``python together.py CHECK...``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from ranks import launch, search_path

HERE = Path(__file__).parent

# Generous: the machine may be busy, and compiling graphs is slow.
JOB_TIMEOUT = 600.0


def on_ranks(*sizes: int) -> Callable[[Callable[[], None]], Callable[..., None]]:
    """Make a test that runs a function on the ranks of a job, for each of the sizes."""

    def decorate(check: Callable[[], None]) -> Callable[..., None]:
        name = f"{check.__module__}:{check.__name__}"

        @pytest.mark.parametrize("size", sizes)
        def test(size: int, request: pytest.FixtureRequest) -> None:
            report = _results(request.session, request.path.parent, size)[name]
            if report is not None:
                pytest.fail(report, pytrace=False)

        test.__name__ = check.__name__
        test.__doc__ = check.__doc__
        test.__module__ = check.__module__
        test.check = check  # type: ignore[attr-defined]
        test.sizes = sizes  # type: ignore[attr-defined]
        return test

    return decorate


# What came of each check, by folder and size of the job: nothing to report, or what went wrong.
_reports: dict[tuple[Path, int], dict[str, str | None]] = {}


def _results(session: pytest.Session, folder: Path, size: int) -> dict[str, str | None]:
    if (folder, size) not in _reports:
        wanted = [
            f"{item.module.__name__}:{item.originalname}"
            for item in session.items
            if isinstance(item, pytest.Function)
            and hasattr(item.function, "check")
            and item.path.parent == folder
            and item.callspec.params["size"] == size
        ]
        _reports[folder, size] = run_all(wanted, [folder], size)
    return _reports[folder, size]


def run_all(
    checks: list[str], folders: list[Path], size: int, variables: dict[str, str] | None = None
) -> dict[str, str | None]:
    """Run checks that are in these folders, and return what came of each: nothing to report, or what went wrong."""
    reports: dict[str, str | None] = {}
    variables = {"HOROVOD_ELASTIC": "", "PYTHONPATH": search_path(*folders, HERE), **(variables or {})}
    while checks:
        job = launch(size, [sys.executable, str(HERE / "together.py"), *checks], JOB_TIMEOUT, **variables)
        passed = [_passed(job.lines_of(rank)) for rank in range(size)]
        reports.update((check, None) for check in checks if all(check in ranks for ranks in passed))
        left = [check for check in checks if check not in reports]
        if left:
            reports[left[0]] = job.output
        elif job.status != 0:
            reports[checks[-1]] = f"the job ended with status {job.status}\n{job.output}"
        checks = left[1:]
    return reports


def _passed(lines: list[str]) -> set[str]:
    return {json.loads(line)["passed"] for line in lines if line.startswith('{"passed"')}


def run_checks(names: list[str]) -> None:
    """Call the checks, as a rank; the first that fails ends this process, and with it the job."""
    import prepare
    import ronde
    from ronde._basics import basics

    prepare.once()
    basics.init(process_sets="dynamic")
    for name in names:
        module, _, function = name.partition(":")
        prepare.each()
        try:
            ronde.barrier()
            getattr(importlib.import_module(module), function).check()
        except BaseException:
            traceback.print_exc()
            print(f"{name} failed on rank {os.environ['HOROVOD_RANK']}", flush=True)
            os._exit(1)
        print(json.dumps({"passed": name}), flush=True)
    ronde.barrier()
    ronde.shutdown()


if __name__ == "__main__":
    # The checks import this module by its name, and its decorator has to be that one.
    sys.modules["together"] = sys.modules["__main__"]
    run_checks(sys.argv[1:])
