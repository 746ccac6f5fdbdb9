"""The parts of the benchmark on a GPU: which jobs each runs, and which rows it adds to the report.

What is compared runs in one process where it can (training steps, packing), and otherwise in jobs that follow each
other. A job that fails costs the report only what it had not measured yet: the others go on, and all failures are told
in the end.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu.aims import (
    FLOOR,
    FULL,
    HALF,
    HALF_SIZE,
    HOST_AIM,
    HOST_RANKS,
    HOST_SIZE,
    LARGE,
    LAUNCH,
    MIDDLE,
    QUICK_SIZES,
    RONDE_HOST,
    RONDE_NCCL,
    SHARED_BY,
    SMALL,
    STEPS,
    allreduce_aims,
    allreduce_section,
    floor_bytes,
    packing_aim,
    step_aim,
)
from gpu.launch import EarlyEndError, Launcher
from harness.aims import GLOO, RONDE
from harness.environment import say
from harness.figures import Figures, Line, one_launch
from harness.jobs import JobError
from harness.report import Report, Row, format_size, format_time

Work = tuple[str, int]
"""A type and a size in bytes."""


@dataclass(frozen=True)
class Effort:
    """How much is measured, and for how long."""

    sizes: tuple[int, ...]
    rounds: int
    step_rounds: int
    block: int
    """Training steps that are timed as one."""


THOROUGH = Effort((*SMALL, *MIDDLE, *LARGE), rounds=7, step_rounds=12, block=10)
QUICK = Effort(QUICK_SIZES, rounds=3, step_rounds=3, block=5)


def measure(report: Report, launcher: Launcher, found: Mapping[str, str], only: Sequence[str], quick: bool) -> None:
    """Measure these parts, or all, on what was found; the error in the end says what could not be measured."""
    report.machine.update(found)
    report.notes.append(f"{found['gpu']}, PyTorch {found['torch']} for CUDA {found['cuda']}, NCCL {found['nccl']}")
    session = Session(report, launcher, QUICK if quick else THOROUGH)
    for name, part in session.parts().items():
        if not only or name in only:
            part()
    if session.failures:
        raise JobError("\n".join(["not everything could be measured", *session.failures]))


class Session:
    """One run of the benchmark: jobs are started, rows go into the report."""

    def __init__(self, report: Report, launcher: Launcher, effort: Effort) -> None:
        self._report, self._launcher, self._effort = report, launcher, effort
        # What Gloo takes, by the number of ranks: two parts compare with it.
        self._gloo: dict[int, dict[str, Figures]] = {}
        self.failures: list[str] = []

    def parts(self) -> dict[str, Callable[[], None]]:
        """Return what there is to measure, by the names that the command line has for it."""
        return {
            "optimizer": self.optimizer,
            "packing": self.packing,
            "allreduce": self.allreduce,
            "host": self.host,
        }

    def optimizer(self) -> None:
        """Compare training steps of one rank with plain ones: as it is, and with everything packed for NCCL."""
        words = ["--rounds", self._effort.step_rounds, "--block", self._effort.block, *STEPS]
        for ours, path in {RONDE: "auto", RONDE_NCCL: "nccl"}.items():
            say(f"training steps: {ours} and plain PyTorch")
            for line in self._run(1, "steps", words, HOROVOD_ELASTIC="1", RONDE_GPU_PATH=path):
                self._add_steps(line, ours)

    def _add_steps(self, line: Line, ours: str) -> None:
        """Add what was compared round by round: the ratio is not the one of the two times beside it."""
        aim, ratio = step_aim(line["case"], ours), line["ratio"]
        row = Row(aim, aim.sizes[0], line["ours_us"], line["plain_us"], ratio, aim.met_by(ratio))
        self._report.rows.append(row)
        noise = f"{aim.section}, {ours}: two plain blocks of a round differ by {line['noise']:.2%} (median)"
        self._report.notes.append(noise)

    def packing(self) -> None:
        """Compare the kernels that bring gradients together and apart with copies."""
        say("packing and unpacking of ResNet-50's gradients")
        for line in self._run(1, "packing", ["--rounds", 3], RONDE_GPU_PATH="nccl"):
            aim = packing_aim(line["case"])
            if line["bytes"] != aim.sizes[0]:
                raise JobError(f"{line['bytes']} bytes were packed, but the aim is for {aim.sizes[0]}")
            self._report.rows.append(Row.judge(aim, line["bytes"], line["ours_us"], line["copies_us"]))

    def allreduce(self) -> None:
        """Compare allreduces of ranks that share the GPU with Gloo, the floor and what a launch costs."""
        for ranks in SHARED_BY:
            self._allreduce_of(ranks)

    def _allreduce_of(self, ranks: int) -> None:
        say(f"allreduce of {ranks} ranks: {RONDE}")
        works = [(FULL, size) for size in self._effort.sizes]
        if HALF_SIZE in self._effort.sizes:
            works.append((HALF, HALF_SIZE))
        lines = self._run(ranks, "ours", self._words(works))
        ours = by_dtype(RONDE, lines)
        if not ours:
            return
        copied, launched = baseline_of(lines)
        self._report.notes.append(
            f"{ranks} ranks: a copy on the GPU moves {copied / 1e12:.2f} TB/s, read and written; "
            f"a kernel and an event take {format_time(launched * 1e6)}"
        )
        gloo = self._gloo_of(ranks, works)
        for dtype, figures in ours.items():
            for size in self._effort.sizes:
                figures.add(FLOOR, [one_launch(size, floor_bytes(size, ranks) / copied)])
                figures.add(LAUNCH, [one_launch(size, launched)])
            figures.launches.update(gloo.get(dtype, Figures()).launches)
            for aim in allreduce_aims(ranks, dtype):
                self._report.compare(aim, figures)
            self._report.keep(allreduce_section(ranks, dtype), figures)

    def host(self) -> None:
        """Compare the way that is left where ranks can neither share memory of the GPU nor use NCCL with Gloo."""
        say(f"allreduce of {HOST_RANKS} ranks through the host: {RONDE_HOST}")
        works = [(FULL, HOST_SIZE)]
        lines = self._run(HOST_RANKS, "ours", self._words(works), RONDE_GPU_PATH="host")
        figures = by_dtype(RONDE_HOST, lines).get(FULL, Figures())
        figures.launches.update(self._gloo_of(HOST_RANKS, works).get(FULL, Figures()).launches)
        self._report.compare(HOST_AIM, figures)
        self._report.keep(HOST_AIM.section, figures)

    def _gloo_of(self, ranks: int, works: Sequence[Work]) -> dict[str, Figures]:
        """Return Gloo's figures, measured once for each number of ranks."""
        if ranks not in self._gloo:
            say(f"allreduce of {ranks} ranks: {GLOO}")
            lines = self._run(ranks, "gloo", self._words(works), **gloo_variables())
            self._gloo[ranks] = by_dtype(GLOO, lines)
        return self._gloo[ranks]

    def _words(self, works: Sequence[Work]) -> list[object]:
        return ["--rounds", self._effort.rounds, *(f"{dtype}:{size}" for dtype, size in works)]

    def _run(self, ranks: int, program: str, words: Sequence[object], **variables: str) -> list[Line]:
        """Return the lines of a job, or what there is of them if it fails."""
        try:
            return self._launcher.run(ranks, program, words, variables, tell)
        except EarlyEndError as error:
            say("that failed; the rest goes on")
            self.failures.append(str(error))
            return error.lines


def gloo_variables() -> dict[str, str]:
    """Return what ranks of torch.distributed on this machine must know to find each other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        # What torchrun sets: ranks that share a machine should not each take all of it.
        "OMP_NUM_THREADS": "1",
    }


def by_dtype(tool: str, lines: Sequence[Line]) -> dict[str, Figures]:
    """Return the figures of a tool's allreduces, by the type of elements."""
    allreduces = [line for line in lines if line["work"] == "allreduce"]
    found = {line["dtype"]: Figures() for line in allreduces}
    for dtype, figures in found.items():
        figures.add(tool, [line for line in allreduces if line["dtype"] == dtype])
    return found


def baseline_of(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the bytes a second that a copy reads and writes, and the seconds that a kernel and an event take."""
    (copy,) = (line for line in lines if line["work"] == "copy")
    (launch,) = (line for line in lines if line["work"] == "launch")
    return 2 * copy["bytes"] / (copy["median_us"] / 1e6), launch["median_us"] / 1e6


def tell(line: Line) -> None:
    """Say what the first rank has measured just now."""
    what = [str(line[key]) for key in ("work", "case", "dtype") if key in line]
    if line.get("bytes"):
        what.append(format_size(line["bytes"]))
    times = [key for key in ("median_us", "ours_us", "plain_us", "copies_us") if key in line]
    shown = ", ".join(f"{key.removesuffix('_us')} {format_time(line[key])}" for key in times)
    say(f"  {' '.join(what)}: {shown}")
