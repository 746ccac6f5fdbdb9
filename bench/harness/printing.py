"""The ranks' output through a launcher on this machine: how fast it passes, and what it costs while nobody reads it.

Eight ranks print lines of a training log as fast as they can. For the speed, the launcher's output is read at once, and
the clock runs from its first byte to its last. For the memory, it is not read at all until the launcher's memory has
stopped growing; then it is, to the end. Either way every line must arrive: a launcher that drops some would be fast and
small.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.aims import (
    HOROVOD,
    OPEN_MPI_LABELLED,
    OPEN_MPI_PLAIN,
    OUTPUT,
    OUTPUT_AIMS,
    OUTPUT_RANKS,
    OUTPUT_SIZE,
    RONDE,
    RONDE_PLAIN,
    SHELL_ALONE,
    UNREAD_AIMS,
)
from harness.environment import OurBinaries, UpstreamHorovod, say
from harness.figures import Figures, one_launch
from harness.jobs import LAST_WORDS, JobError
from harness.launchers import RANKS, Installed, clean, horovodrun, install, mpirun, ronde_run
from harness.report import Report, Row, format_size
from launch.printer import LINE, lines_of

EACH = OUTPUT_SIZE // OUTPUT_RANKS
PIECE = 1 << 20
# Memory is looked at so often, and has stopped growing when it has been the same for so long.
LOOK_SECONDS = 0.1
SETTLED_SECONDS = 2.0
# By then all ranks run: one that has just been forked looks like a process of its launcher.
STARTED_SECONDS = 1.5


@dataclass(frozen=True)
class Launcher:
    """A launcher as a command, and the program whose processes are its own."""

    name: str
    command: Sequence[object]
    program: Path


@dataclass(frozen=True)
class Passage:
    """What came out of a launcher: lines, bytes, and the seconds from the first byte to the last."""

    lines: int
    bytes: int
    seconds: float


def speed(report: Report, ours: OurBinaries, upstream: UpstreamHorovod | None, rounds: int) -> None:
    """Measure how fast output passes and add it to the report."""
    figures = Figures()
    seconds: dict[str, list[float]] = defaultdict(list)
    with _installed(ours) as installed:
        for turn in range(1, rounds + 1):
            for launcher in _launchers(installed, upstream, [EACH]):
                say(f"{OUTPUT}, round {turn} of {rounds}: {launcher.name}")
                with _started(launcher) as process:
                    passage = drain(process.stdout)
                _check(launcher, passage, OUTPUT_RANKS * lines_of(EACH))
                figures.add(launcher.name, [one_launch(OUTPUT_SIZE, passage.seconds)])
                seconds[launcher.name].append(passage.seconds)
    report.keep(OUTPUT, figures)
    for aim in OUTPUT_AIMS:
        report.compare(aim, figures)
    printed = OUTPUT_RANKS * lines_of(EACH) * len(LINE) / 1e6
    shown = ", ".join(f"{name} {printed / statistics.median(taken):.0f}" for name, taken in seconds.items())
    report.notes.append(f"{OUTPUT} in MB/s of what they print: {shown}")


def memory_unread(report: Report, ours: OurBinaries, rounds: int) -> None:
    """Measure launchers' memory while their output is not read and add the worst of all rounds to the report."""
    with _installed(ours) as installed:
        for aim in UNREAD_AIMS:
            printing, silent = (
                max(_peak(installed, aim.ours, words, f"round {turn} of {rounds}") for turn in range(1, rounds + 1))
                for words in ((EACH, 0.0), (0, 2 * STARTED_SECONDS))
            )
            report.rows.append(Row.judge(aim, OUTPUT_SIZE, printing, silent))


def _peak(installed: Installed, name: str, words: tuple[int, float], turn: str) -> int:
    """Return the most memory that the launcher of this name had in one launch."""
    each, _ = words
    say(f"memory of {name} while {OUTPUT_RANKS} ranks print {format_size(each)} each, {turn}")
    launcher = next(launcher for launcher in _launchers(installed, None, words) if launcher.name == name)
    peak, passage = _unread(launcher)
    _check(launcher, passage, OUTPUT_RANKS * lines_of(each))
    return peak


@contextmanager
def _installed(ours: OurBinaries) -> Iterator[Installed]:
    """Give an installation of ours that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ronde-bench-") as prefix:
        installed = Installed(Path(prefix))
        install(ours, installed)
        yield installed


def _launchers(installed: Installed, upstream: UpstreamHorovod | None, words: Sequence[object]) -> list[Launcher]:
    """Return everybody who passes on the output of ranks that print so much."""
    rank = [sys.executable, RANKS / "printer.py", *words]
    plain = clean(str(installed.prefix))
    as_many = ["-np", OUTPUT_RANKS]
    crowded = [*as_many, "--oversubscribe"]
    open_mpi = Path(shutil.which("mpirun") or "mpirun").resolve()
    every_rank = " ".join(["for rank in", *map(str, range(OUTPUT_RANKS)), "; do", *map(str, rank), "& done; wait"])
    launchers = [
        Launcher(RONDE, [*plain, *ronde_run(installed, as_many, rank)], installed.ronde),
        Launcher(OPEN_MPI_LABELLED, [*plain, *mpirun([*crowded, "--tag-output"], rank)], open_mpi),
        Launcher(RONDE_PLAIN, [*plain, *ronde_run(installed, [*as_many, "--no-prefix"], rank)], installed.ronde),
        Launcher(OPEN_MPI_PLAIN, [*plain, *mpirun(crowded, rank)], open_mpi),
        Launcher(SHELL_ALONE, [*plain, "sh", "-c", f"{{ {every_rank}; }} | cat"], Path("/bin/sh")),
    ]
    if upstream is not None:
        packages = clean(str(installed.prefix), {"PYTHONPATH": upstream.package})
        command = [*packages, *horovodrun(upstream, as_many, rank)]
        launchers.append(Launcher(HOROVOD, command, upstream.python.resolve()))
    return launchers


@contextmanager
def _started(launcher: Launcher) -> Iterator[subprocess.Popen[bytes]]:
    """Start a launcher; at the end it must have ended well. Ranks without a reader end by themselves."""
    words = [str(word) for word in launcher.command]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, bufsize=0)
        try:
            yield process
            status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if status != 0:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()[-LAST_WORDS:]
            raise JobError(f"{launcher.name} ended with status {status}: {said}")


def drain(output: IO[bytes] | None) -> Passage:
    """Read everything, as fast as it comes."""
    assert output is not None
    lines, size, first, last = 0, 0, None, 0.0
    while piece := os.read(output.fileno(), PIECE):
        last = time.perf_counter()
        first = first or last
        size += len(piece)
        lines += piece.count(b"\n")
    return Passage(lines, size, last - (first or last))


def _check(launcher: Launcher, passage: Passage, lines: int) -> None:
    if passage.lines != lines or passage.bytes < lines * len(LINE):
        raise JobError(
            f"{launcher.name} passed on {passage.lines} lines and {passage.bytes} bytes of the {lines} lines and "
            f"{lines * len(LINE)} bytes that the ranks printed"
        )


def _unread(launcher: Launcher) -> tuple[int, Passage]:
    """Read nothing until the launcher's memory has settled, then everything; return the most that it had."""
    peak, reading = 0, None
    with _started(launcher) as process, ThreadPoolExecutor(max_workers=1) as pool:
        grew = time.monotonic() + STARTED_SECONDS
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            held = held_by(process.pid, launcher.program) if now > grew or peak else 0
            if held > peak:
                peak, grew = held, now
            if reading is None and now > grew + SETTLED_SECONDS:
                reading = pool.submit(drain, process.stdout)
        # A launcher that had nothing to say has ended by itself.
        passage = (reading or pool.submit(drain, process.stdout)).result()
    return peak, passage


def held_by(process: int, program: Path) -> int:
    """Return the largest resident memory so far of a process and its descendants, of those that run the program."""
    total, waiting = 0, [process]
    while waiting:
        number = waiting.pop()
        folder = Path(f"/proc/{number}")
        try:
            for task in (folder / "task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
            if (folder / "exe").resolve() == program:
                status = (folder / "status").read_text()
                total += sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
        except OSError:
            # It has ended meanwhile.
            continue
    return total
