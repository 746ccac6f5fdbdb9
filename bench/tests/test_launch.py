"""What decides about the launchers' figures: which lines count, that none is missing, and whose memory it is."""

# The names of tests say what docstrings would.
# ruff: noqa: D103

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.aims import start_aims
from harness.environment import OurBinaries
from harness.jobs import JobError
from harness.launchers import RANKS, Installed, clean, install
from harness.printing import Launcher, Passage, _check, _started, _unread, drain, held_by
from harness.starts import WrongOutputError, watch
from launch.printer import LINE, LINES_AT_ONCE, lines_of

LINE_OF = "first allreduce: rank {} of 2, sum {}\n"


def test_a_start_ends_with_the_last_ranks_line_labelled_or_not() -> None:
    labelled = [f"[{rank}]<stdout>:{LINE_OF.format(rank, 3)}" for rank in (1, 0)]
    assert watch(iter(["noise\n", *labelled]), 2) > 0
    assert watch(iter([LINE_OF.format(0, 3), LINE_OF.format(1, 3), "noise\n"]), 2) > 0


def test_the_probes_lines_count_as_well_but_not_those_about_links() -> None:
    links = [f'{{"work":"links","rank":{rank},"links":[]}}\n' for rank in (0, 1)]
    timed = [f'{{"work":"allreduce","bytes":4,"rank":{rank},"calls":5}}\n' for rank in (0, 1)]
    assert watch(iter([*links, *timed]), 2) > 0
    with pytest.raises(WrongOutputError, match="only ranks"):
        watch(iter(links), 2)


def test_a_wrong_sum_or_a_missing_rank_is_no_start() -> None:
    with pytest.raises(WrongOutputError, match="a wrong sum: first allreduce: rank 1 of 2, sum 2"):
        watch(iter([LINE_OF.format(0, 3), LINE_OF.format(1, 2)]), 2)
    with pytest.raises(WrongOutputError, match=r"only ranks \[0\] of 2"):
        watch(iter([LINE_OF.format(0, 3)]), 2)


def test_aims_are_named_by_the_number_of_hosts() -> None:
    assert {aim.section for aim in start_aims(8)} == {"start on 8 hosts", "whole job on 8 hosts"}


def test_an_installation_is_laid_out_as_the_launcher_looks_for_its_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for module in ("ronde", "horovod"):
        (package / module).mkdir(parents=True)
        (package / module / "__init__.py").touch()
    (tmp_path / "binary").write_text("#!/bin/sh\n")
    root = tmp_path / "root"
    installed = Installed(Path("/opt/ours"))
    install(OurBinaries(tmp_path / "binary", tmp_path / "probe", package), installed, root)
    assert os.access(root / "opt/ours/bin/ronde", os.X_OK)
    assert len(list(root.glob("opt/ours/lib/python3.*/site-packages/ronde/__init__.py"))) == 1
    assert len(list(root.glob("opt/ours/lib/python3.*/site-packages/horovod/__init__.py"))) == 1


def test_launchers_see_nothing_of_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    seen = subprocess.run([*clean("/nowhere", {"ONE": 1}), "env"], capture_output=True, text=True, check=True).stdout
    assert {"HOME=/nowhere", "ONE=1"} < set(seen.splitlines())
    assert "HOROVOD" not in seen


def printing(size: int, *words: object) -> Launcher:
    """Return a launcher of one rank: the rank itself."""
    command = [sys.executable, RANKS / "printer.py", size, *words]
    return Launcher("nobody", command, Path(sys.executable).resolve())


def test_everything_that_was_printed_is_counted() -> None:
    size = 3 * LINES_AT_ONCE * len(LINE) + 1
    with _started(printing(size)) as process:
        passage = drain(process.stdout)
    assert (passage.lines, passage.bytes) == (3 * LINES_AT_ONCE, size - 1)
    _check(printing(size), passage, lines_of(size))


def test_a_launcher_that_loses_a_line_is_refused() -> None:
    full = Passage(lines_of(1 << 20), lines_of(1 << 20) * len(LINE), 1.0)
    with pytest.raises(JobError, match="nobody passed on"):
        _check(printing(1), full, full.lines + 1)
    with pytest.raises(JobError, match="nobody passed on"):
        _check(printing(1), Passage(full.lines, full.bytes - 1, 1.0), full.lines)


def test_a_launcher_that_fails_is_quoted() -> None:
    failing = Launcher("nobody", [sys.executable, "-c", "raise SystemExit('no such luck')"], Path(sys.executable))
    with pytest.raises(JobError, match="nobody ended with status 1: no such luck"), _started(failing):
        pass


def test_output_that_is_not_read_at_first_is_read_in_the_end() -> None:
    size = 10 * LINES_AT_ONCE * len(LINE)
    peak, passage = _unread(printing(size))
    assert peak > 1 << 20
    assert passage.lines == lines_of(size)


def test_memory_is_that_of_the_launchers_own_processes() -> None:
    # It has executed by the time that its number is known.
    words = ["sleep", "1000"]  # sleep: is there until it is killed
    script = f"import subprocess; rank = subprocess.Popen({words}); print(rank.pid, flush=True); rank.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        try:
            own, other = (Path(f"/proc/{number}/exe").resolve() for number in (launcher.pid, rank))
            assert held_by(launcher.pid, own) > held_by(launcher.pid, other) > 0
            assert held_by(rank, own) == 0
        finally:
            os.kill(rank, signal.SIGKILL)
