"""Runs the tests that need a GPU: the checks of PyTorch's operations and trainings on CUDA tensors, and this folder's.

    python tests/gpu/run.py --site SITE --ronde SITE/bin/ronde [--nccl LIBRARY] [--only WORD]... [--sizes 1,2,4]

``python`` is one with a PyTorch that sees a GPU; SITE is a folder that the wheel was installed into. Neither pytest nor
an environment is needed, since such machines rarely have either. ``make test-gpu`` does all that.

All ranks share the GPU, as they do on a machine for development. Checks of one size run in one job, as in
``tests/python/together.py``; some run again under NVIDIA's MPS, and those that are about memory with PyTorch's other
ways to allocate it. Each check has a line, failures are shown in the end, and the status says whether there were any.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
FOLDERS = [HERE, TESTS / "torch"]
# Importable in any process of a test, also where pytest is not installed.
STAND_IN = HERE / "without_pytest"

# PyTorch's other ways to get memory: neither can be shared with other processes, and each orders reuse in its own way.
ALLOCATORS = {
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
ALLOCATOR_MODULES = {"test_operations", "test_streams", "test_growth", "test_gpu_training"}
ALLOCATOR_SIZES = {2}
# What runs again with ranks that compute side by side, by NVIDIA's MPS, instead of in turns.
MPS_MODULES = {"test_operations", "test_streams", "test_gpu_training", "test_compression"}
MPS_SIZES = {2, 4}
# What is to be seen only there: in turns, a process has one queue for everything.
ONLY_MPS = {"test_overlap:test_ranks_that_share_a_gpu_reduce_beside_the_backward_pass"}


class Check(NamedTuple):
    """A function that the ranks of a job call."""

    name: str
    sizes: tuple[int, ...]


class Tests(NamedTuple):
    """What was found in the folders."""

    checks: list[Check]
    programs: dict[str, Callable[[], None]]
    """Tests that start jobs of their own."""


class Tally:
    """Prints a line for each result, and the failures in the end."""

    def __init__(self) -> None:
        self.passed = 0
        self.failures: list[tuple[str, str]] = []

    def add(self, what: str, report: str | None) -> None:
        """Print how a test ended; without a report it passed."""
        print(f"{'ok    ' if report is None else 'FAILED'}  {what}", flush=True)
        if report is None:
            self.passed += 1
        else:
            self.failures.append((what, report))

    def close(self, seconds: float) -> int:
        """Print the failures and a summary; return the status."""
        for what, report in self.failures:
            print(f"\n===== {what}\n" + "\n".join(report.rstrip().splitlines()[-60:]))
        print(f"\n{self.passed} passed, {len(self.failures)} failed in {seconds:.0f} s", flush=True)
        return 1 if self.failures or not self.passed else 0


def missing_gpu() -> str | None:
    """Say why there is nothing to test with, if so."""
    if importlib.util.find_spec("torch") is None:
        return f"error: {sys.executable} has no PyTorch; name a Python with one: make test-gpu PYTHON=..."
    import torch

    if not torch.cuda.is_available():
        return f"error: PyTorch {torch.__version__} of {sys.executable} sees no GPU, which these tests need"
    return None


def find_tests() -> Tests:
    """Import all modules of tests and return what is in them."""
    checks, programs = [], {}
    for folder in FOLDERS:
        for path in sorted(folder.glob("test_*.py")):
            module = importlib.import_module(path.stem)
            for name, value in vars(module).items():
                if hasattr(value, "check"):
                    checks.append(Check(f"{path.stem}:{name}", value.sizes))
                elif folder == HERE and name.startswith("test_"):
                    programs[f"{path.stem}:{name}"] = value
    return Tests(checks, programs)


def jobs(
    checks: list[Check], sizes: set[int], nccl: str | None
) -> Iterator[tuple[str, list[str], int, dict[str, str]]]:
    """Yield what runs together: what it is called, the checks, the number of ranks and variables."""
    plain = [check for check in checks if check.name not in ONLY_MPS]
    for size in sorted({size for check in plain for size in check.sizes} & sizes):
        yield _ranks(size), [check.name for check in plain if size in check.sizes], size, {}
    for size in sorted(MPS_SIZES & sizes):
        here = [check for check in checks if module_of(check) in MPS_MODULES or check.name in ONLY_MPS]
        wanted = [check.name for check in here if size in check.sizes]
        yield f"{_ranks(size)}, MPS", wanted, size, {"RONDE_MPS": "1"}
    for allocator, value in ALLOCATORS.items():
        for size in sorted(ALLOCATOR_SIZES & sizes):
            wanted = [check.name for check in checks if size in check.sizes and module_of(check) in ALLOCATOR_MODULES]
            yield f"{_ranks(size)}, {allocator}", wanted, size, {"PYTORCH_CUDA_ALLOC_CONF": value}
    # NCCL refuses several ranks on one GPU, so they meet through the library that stands in for it.
    libraries = {1: None, **({4: nccl} if nccl else {})}
    for size, library in libraries.items():
        if size in sizes:
            title = f"{_ranks(size)}, NCCL" if library is None else f"{_ranks(size)}, NCCL for tests"
            named = {} if library is None else {"RONDE_NCCL_LIBRARY": library}
            wanted = [check.name for check in plain if size in check.sizes]
            yield title, wanted, size, {"RONDE_GPU_PATH": "nccl", **named}


def module_of(check: Check) -> str:
    """Return the name of the file that a check is in."""
    return check.name.partition(":")[0]


def _ranks(size: int) -> str:
    return "1 rank" if size == 1 else f"{size} ranks"


def run(tests: Tests, sizes: set[int], nccl: str | None) -> int:
    """Run all of it and return the status."""
    import together

    tally, started = Tally(), time.monotonic()
    for title, names, size, variables in jobs(tests.checks, sizes, nccl):
        try:
            reports = together.run_all(names, FOLDERS, size, variables) if names else {}
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
            text = output if isinstance(output, str) else output.decode(errors="replace")
            reports = {f"{len(names)} checks": f"the job did not end within {error.timeout} s\n{text}"}
        for name, report in reports.items():
            tally.add(f"{title}: {name}", report)
    for name, program in tests.programs.items():
        try:
            program()
            tally.add(name, None)
        except Exception:
            tally.add(name, traceback.format_exc())
    return tally.close(time.monotonic() - started)


def main() -> int:
    """Read the command line, prepare what processes of tests find, and run."""
    parser = argparse.ArgumentParser(description="Run the tests that need a GPU.")
    parser.add_argument("--site", help="the folder that the wheel was installed into")
    parser.add_argument("--ronde", help="the launcher of that wheel")
    parser.add_argument("--only", action="append", default=[], help="run tests with this in their name")
    parser.add_argument("--sizes", default="1,2,3,4", help="numbers of ranks")
    parser.add_argument("--nccl", help="libronde_test_nccl.so, which stands in for NCCL where four ranks share the GPU")
    parser.add_argument("--look", action="store_true", help="only say whether there is a GPU")
    given = parser.parse_args()
    problem = missing_gpu()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 1
    if given.look:
        return 0
    if given.site is None or given.ronde is None:
        parser.error("--site and --ronde are needed")
    shared = [str(Path(given.site).resolve())]
    if importlib.util.find_spec("pytest") is None:
        shared.append(str(STAND_IN))
    os.environ["RONDE_TEST_PATH"] = os.pathsep.join(shared)
    os.environ["RONDE_TEST_LAUNCHER"] = str(Path(given.ronde).resolve())
    os.environ["RONDE_TEST_DEVICE"] = "cuda"
    sys.path[:0] = [str(TESTS / "python"), *map(str, FOLDERS), *shared]
    found = find_tests()

    def is_wanted(name: str) -> bool:
        return not given.only or any(word in name for word in given.only)

    checks = [check for check in found.checks if is_wanted(check.name)]
    programs = {name: program for name, program in found.programs.items() if is_wanted(name)}
    nccl = str(Path(given.nccl).resolve()) if given.nccl else None
    os.environ["RONDE_TEST_NCCL_LIBRARY"] = nccl or ""
    return run(Tests(checks, programs), {int(size) for size in given.sizes.split(",")}, nccl)


if __name__ == "__main__":
    sys.exit(main())
