"""Campaigns on small programs that pass, fail at times, hang, or leave processes; stopped, killed and resumed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from campaign.record import Record, Run
from suites import ROOT

# Runs the programs of FOLDER/units under a time limit and with a grace period, for some minutes.
CAMPAIGN = """
import sys
from pathlib import Path
from campaign.loop import Campaign
from campaign.main import run_and_report
from campaign.record import Record
from campaign.runs import Limits
from campaign.schedule import Kind
from campaign.units import Unit

folder = Path(sys.argv[1])
limit, grace, minutes = map(float, sys.argv[2:])
programs = sorted((folder / "units").iterdir())
units = [Unit(path.name, Kind.RUST, (str(path),), folder, (path,)) for path in programs]
record = Record(folder / "flakes")
with record.locked():
    campaign = Campaign(units, record, record.runs(), Limits(limit, grace))
    sys.exit(run_and_report(campaign, minutes, ["left out: nothing"]))
"""
# Longer than anything here takes, in seconds; what is waited for ends the wait.
PATIENCE = 300.0
PASSES = "echo test one ... ok"
FAILS_EVERY_THIRD_TIME = """
echo run >>fails.runs
echo test one ... ok
[ $(($(wc -l <fails.runs) % 3)) != 0 ] || { echo test two ... FAILED; exit 101; }
"""
STAYS = "sleep 1000"  # sleep: is there until it is killed
# Says that it runs, and does not end.
WAITS = f"touch waits.started; exec {STAYS}"
# Ends a while after the process that started it.
FOLLOWS = "while kill -0 $$ 2>/dev/null; do sleep 0.01; done; sleep 0.5"  # sleep: between two looks; is still there


class Programs:
    """The programs of a campaign, and everything that descends from it, which inherits a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"FLAKES_TEST={folder}"
        self.record = Record(folder / "flakes")
        (folder / "units").mkdir()

    def write(self, name: str, script: str) -> None:
        """Write a shell script that a campaign takes for a test executable."""
        path = self.folder / "units" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    @contextlib.contextmanager
    def campaign(self, limit: float = PATIENCE, grace: float = PATIENCE) -> Iterator[subprocess.Popen[str]]:
        """Start a campaign."""
        name, _, value = self.mark.partition("=")
        process = subprocess.Popen(
            [sys.executable, "-c", CAMPAIGN, str(self.folder), str(limit), str(grace), str(PATIENCE / 60)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tools"), name: value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            # A broken campaign leaves processes, which would keep its output open.
            for pid in (process.pid, *self.processes()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()

    def run_until(self, line: str, limit: float = PATIENCE, grace: float = PATIENCE) -> tuple[int, str]:
        """Run a campaign until it prints a line, then interrupt it; return its exit status and what it printed."""
        with self.campaign(limit, grace) as process:
            seen = read_until(process.stdout, line)
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=PATIENCE)
            return process.returncode, seen + rest

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes with the mark, by process id."""
        return {int(entry.name): words for entry in Path("/proc").iterdir() if (words := self._words(entry))}

    def _words(self, process: Path) -> str:
        try:
            if process.name.isdigit() and self.mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            # It has ended meanwhile.
            pass
        return ""

    def runs_of(self, name: str) -> list[Run]:
        """Return the runs of a program that count."""
        return [run for run in self.record.runs() if run.name == name]


def read_until(output: IO[str] | None, expected: str) -> str:
    """Read whole lines until one matches."""
    assert output is not None
    seen = ""
    for line in output:
        seen += line
        if re.search(expected, line):
            return seen
    raise AssertionError(f"'{expected}' was not printed:\n{seen}")


def await_that(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)  # sleep: between two looks


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def test_runs_are_counted_and_logs_are_kept_of_failures_only(programs: Programs) -> None:
    programs.write("passes", PASSES)
    programs.write("fails", FAILS_EVERY_THIRD_TIME)
    status, output = programs.run_until("^fails  .*FAILED")
    assert status == 1, output
    assert all(run.failures == () and run.log == "" for run in programs.runs_of("passes"))
    *passed, failed = programs.runs_of("fails")[:3]
    assert [run.failures for run in passed] == [(), ()]
    assert failed.failures == ("two",)
    assert Path(failed.log).read_text() == "test one ... ok\ntest two ... FAILED\n"
    assert f"FAILED 1 time: fails two (last at {failed.commit}, {failed.mode}): {failed.log}\n" in output
    assert "not long enough yet: 0 of 2 Rust executables" in output
    assert output.startswith("left out: nothing\n")
    assert output.endswith("\nleft out: nothing\n")
    assert re.search(rf"^passes +\d+/5 +{count(programs, 'passes', 'load')}/20  -$", output, re.MULTILINE), output


def count(programs: Programs, name: str, mode: str) -> int:
    return sum(run.mode == mode for run in programs.runs_of(name))


def test_a_run_that_hangs_is_a_failure_and_nothing_of_it_stays(programs: Programs) -> None:
    programs.write("hangs", f"{STAYS} & setsid {STAYS} & exec {STAYS}")
    status, output = programs.run_until("^hangs  .*FAILED", limit=0.5)
    assert status == 1, output
    assert programs.runs_of("hangs")[0].failures == ("(hung)",)
    log = Path(programs.runs_of("hangs")[0].log).read_text()
    assert "flakes: killed after 0.5 s\n" in log
    assert re.search(r"^flakes: process \d+: \S.*\nflakes:     thread \d+ ", log, re.MULTILINE), log
    assert programs.processes() == {}


def test_a_process_that_stays_is_a_failure_and_is_killed_also_in_a_session_of_its_own(programs: Programs) -> None:
    programs.write("leaves", f"setsid {STAYS} & {PASSES}")
    status, output = programs.run_until("^leaves  .*FAILED", grace=0.2)
    assert status == 1, output
    (run, *_) = programs.runs_of("leaves")
    assert run.failures == ("(left processes)",)
    assert re.search(rf"^flakes: left after 0.2 s: \d+ {STAYS}$", Path(run.log).read_text(), re.MULTILINE)
    assert programs.processes() == {}


def test_a_process_that_ends_soon_after_its_run_is_none(programs: Programs) -> None:
    programs.write("soon", f"({FOLLOWS}) & {PASSES}")
    status, output = programs.run_until("^soon  .*ok")
    assert status == 128 + signal.SIGINT, output
    assert programs.runs_of("soon")[0].failures == ()


def test_four_loops_are_busy_during_loaded_runs_and_none_during_idle_ones(programs: Programs) -> None:
    # Only the loops have the line as an argument of their own; its quotes keep the pattern from finding itself.
    look = "grep -lzx 'while :; do :; done' /proc/[0-9]*/cmdline 2>/dev/null"
    mine = f"for file in $({look}); do grep -qzx '{programs.mark}' ${{file%cmdline}}environ && echo busy; done"
    programs.write("looks", f"({mine}) | wc -l >>looks.seen; {PASSES}")
    programs.run_until("^looks  load  ok")
    runs = [run.mode for run in programs.runs_of("looks")]
    seen = (programs.folder / "looks.seen").read_text().split()
    assert {"idle", "load"} == set(runs)
    assert seen[: len(runs)] == ["4" if mode == "load" else "0" for mode in runs]


def started(programs: Programs) -> bool:
    return (programs.folder / "waits.started").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_campaign_that_is_stopped_ends_everything_and_is_resumed(programs: Programs, number: signal.Signals) -> None:
    programs.write("passes", PASSES)
    programs.run_until("^passes  load  ok")
    before = programs.record.runs()
    assert before

    # It never ran, so it is next: first idle, then under load.
    programs.write("waits", f"[ -e waits.idle ] || {{ touch waits.idle; exit; }}; {WAITS}")
    with programs.campaign() as process:
        await_that(lambda: started(programs))
        assert sum("while :; do :; done" in words for words in programs.processes().values()) == 4
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE)
    after = programs.record.runs()
    # A killed process cannot wait until its children have ended.
    await_that(lambda: programs.processes() == {})
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), output
    assert after[: len(before)] == before
    assert [(run.name, run.mode) for run in after if run.name == "waits"] == [("waits", "idle")]

    programs.write("waits", PASSES)
    programs.run_until("^waits  load  ok")
    assert programs.record.runs()[: len(after)] == after


def test_counts_start_again_when_an_executable_changes_and_its_failures_stay(programs: Programs) -> None:
    programs.write("fails", "exit 101")
    status, output = programs.run_until("^fails  .*FAILED")
    assert status == 1, output
    programs.write("fails", PASSES)
    status, output = programs.run_until("^fails  .*ok")
    assert status == 128 + signal.SIGINT, output
    assert re.search(
        r"^FAILED \d+ times?: fails \(exit status 101\) \(last at .*, changed since\)", output, re.MULTILINE
    )
    assert re.search(r"^fails +[01]/5 +\d+/20  -$", output, re.MULTILINE), output


def test_a_run_during_which_the_executable_changes_does_not_count(programs: Programs) -> None:
    programs.write("changes", f"{PASSES}; [ -e changed ] || echo exit >>$0; touch changed")
    _, output = programs.run_until("^changes  .*ok")
    assert re.findall("^changes  .*", output, re.MULTILINE)[0].endswith("changed during the run, which does not count")
    assert len(programs.runs_of("changes")) == len(re.findall("^changes  .*ok", output, re.MULTILINE))


def test_a_second_campaign_is_refused_in_one_line(programs: Programs) -> None:
    with programs.record.locked():
        done = subprocess.run(
            [ROOT / "tools" / "flakes"],
            env={**os.environ, "RONDE_CACHE": str(programs.folder)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.stderr == f"error: `make flakes` runs already (process {os.getpid()})\n"
    assert (done.returncode, done.stdout) == (2, "")
