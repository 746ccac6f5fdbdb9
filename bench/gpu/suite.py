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
    DDP,
    FLOOR,
    FULL,
    GLOO_MPS,
    HALF,
    HALF_SIZE,
    HOST_AIM,
    HOST_RANKS,
    HOST_SIZE,
    IN_PLACE,
    LARGE,
    LARGE_TENSOR,
    LAUNCH,
    MIDDLE,
    PACKED,
    QUICK_SIZES,
    QUICK_TENSOR_SIZES,
    RONDE_HOST,
    RONDE_MPS,
    RONDE_NCCL,
    RONDE_NCCL_FP16,
    SHARED_BY,
    SMALL,
    STEPS,
    TENSOR_SIZES,
    THRESHOLD_AIM,
    allreduce_aims,
    allreduce_section,
    floor_bytes,
    mps_aim,
    packing_aim,
    step_aim,
    switch_aim,
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
    tensor_sizes: tuple[int, ...]
    """Sizes of tensors of which there are many."""
    rounds: int
    step_rounds: int
    block: int
    """Training steps that are timed as one."""


THOROUGH = Effort((*SMALL, *MIDDLE, *LARGE), TENSOR_SIZES, rounds=7, step_rounds=12, block=10)
QUICK = Effort(QUICK_SIZES, QUICK_TENSOR_SIZES, rounds=3, step_rounds=3, block=5)


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
        # What Gloo takes, by the number of ranks and whether under MPS: two parts compare with it.
        self._gloo: dict[tuple[int, bool], dict[str, Figures]] = {}
        self.failures: list[str] = []

    def parts(self) -> dict[str, Callable[[], None]]:
        """Return what there is to measure, by the names that the command line has for it."""
        return {
            "optimizer": self.optimizer,
            "nccl": self.nccl,
            "packing": self.packing,
            "threshold": self.threshold,
            "allreduce": self.allreduce,
            "switch": self.switch,
            "host": self.host,
        }

    def optimizer(self) -> None:
        """Compare training steps of one rank, as it is, with plain ones."""
        self._steps(RONDE, "auto", "none")

    def nccl(self) -> None:
        """Compare training steps of one rank, with everything packed for NCCL, with plain ones; also others' steps."""
        self._steps(RONDE_NCCL, "nccl", "none")
        self._steps(RONDE_NCCL_FP16, "nccl", "fp16")
        self._steps(DDP, "nccl", "ddp")

    def _steps(self, ours: str, path: str, way: str) -> None:
        say(f"training steps: {ours} and plain PyTorch")
        words = ["--rounds", self._effort.step_rounds, "--block", self._effort.block, "--way", way, *STEPS]
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

    def threshold(self) -> None:
        """Find the size from which tensors of a batch are better reduced in place than packed."""
        figures = Figures()
        for tool, case, fusion in ((PACKED, "packed", {}), (IN_PLACE, "direct", {"HOROVOD_FUSION_THRESHOLD": "0"})):
            say(f"many tensors by NCCL: {tool}")
            words = ["--rounds", self._effort.rounds, case, *self._effort.tensor_sizes]
            figures.add(tool, self._run(1, "threshold", words, RONDE_GPU_PATH="nccl", **fusion))
        self._report.compare(THRESHOLD_AIM, figures)
        self._report.keep(THRESHOLD_AIM.section, figures)
        taken: dict[int, tuple[float, float]] = {}
        for size in self._effort.tensor_sizes:
            packed, in_place = figures.best_or_typical(PACKED, size), figures.best_or_typical(IN_PLACE, size)
            if packed is not None and in_place is not None:
                taken[size] = packed, in_place
        if taken:
            self._report.notes.append(crossover(taken))

    def allreduce(self) -> None:
        """Compare allreduces of ranks that share the GPU, in turns and by MPS, with Gloo, the floor and a launch."""
        for ranks in SHARED_BY:
            in_turns, by_mps = (self._allreduce_of(ranks, mps) for mps in (False, True))
            for dtype in in_turns.keys() & by_mps.keys():
                together = Figures()
                together.launches.update({**in_turns[dtype].launches, **by_mps[dtype].launches})
                self._report.compare(mps_aim(ranks, dtype), together)

    def _allreduce_of(self, ranks: int, mps: bool) -> dict[str, Figures]:
        tool = RONDE_MPS if mps else RONDE
        say(f"allreduce of {ranks} ranks: {tool}")
        works = [(FULL, size) for size in self._effort.sizes]
        if HALF_SIZE in self._effort.sizes:
            works.append((HALF, HALF_SIZE))
        lines = self._run(ranks, "ours", self._words(works), mps=mps)
        ours = by_dtype(tool, lines)
        if not ours:
            return {}
        copied, launched = baseline_of(lines)
        self._report.notes.append(
            f"{ranks} ranks{', MPS' if mps else ''}: a copy moves {copied / 1e12:.2f} TB/s, read and written; "
            f"a kernel and an event take {format_time(launched * 1e6)}"
        )
        gloo = self._gloo_of(ranks, works, mps)
        for dtype, figures in ours.items():
            for size in self._effort.sizes:
                figures.add(FLOOR, [one_launch(size, floor_bytes(size, ranks) / copied)])
                figures.add(LAUNCH, [one_launch(size, launched)])
            figures.launches.update(gloo.get(dtype, Figures()).launches)
            for aim in allreduce_aims(ranks, dtype, mps):
                self._report.compare(aim, figures)
            self._report.keep(f"{allreduce_section(ranks, dtype)}{', MPS' if mps else ''}", figures)
        return ours

    def switch(self) -> None:
        """Find out what a change of the GPU between two processes takes, in turns and by MPS."""
        for mps in (False, True):
            aim = switch_aim(mps)
            say(f"changes between {aim.section}")
            lines = self._run(2, "switch", ["--rounds", self._effort.rounds], mps=mps)
            taken = {line["case"]: line["median_us"] for line in lines if line["rank"] == 0}
            if {"kernels", "handover"} <= taken.keys():
                kernels, handover = taken["kernels"], taken["handover"]
                self._report.rows.append(Row.judge(aim, 0, kernels, handover))
                added = format_time(max(kernels - handover, 0.0))
                self._report.notes.append(f"{aim.section}: a change and a small kernel add {added} to handing over")

    def host(self) -> None:
        """Compare the way that is left where ranks can neither share memory of the GPU nor use NCCL with Gloo."""
        say(f"allreduce of {HOST_RANKS} ranks through the host: {RONDE_HOST}")
        works = [(FULL, HOST_SIZE)]
        lines = self._run(HOST_RANKS, "ours", self._words(works), RONDE_GPU_PATH="host")
        figures = by_dtype(RONDE_HOST, lines).get(FULL, Figures())
        figures.launches.update(self._gloo_of(HOST_RANKS, works, mps=False).get(FULL, Figures()).launches)
        self._report.compare(HOST_AIM, figures)
        self._report.keep(HOST_AIM.section, figures)

    def _gloo_of(self, ranks: int, works: Sequence[Work], mps: bool) -> dict[str, Figures]:
        """Return Gloo's figures under the same conditions, measured once for each number of ranks."""
        if (ranks, mps) not in self._gloo:
            tool = GLOO_MPS if mps else GLOO
            say(f"allreduce of {ranks} ranks: {tool}")
            lines = self._run(ranks, "gloo", self._words(works), mps=mps, **gloo_variables())
            self._gloo[ranks, mps] = by_dtype(tool, lines)
        return self._gloo[ranks, mps]

    def _words(self, works: Sequence[Work]) -> list[object]:
        return ["--rounds", self._effort.rounds, *(f"{dtype}:{size}" for dtype, size in works)]

    def _run(
        self, ranks: int, program: str, words: Sequence[object], mps: bool = False, **variables: str
    ) -> list[Line]:
        """Return the lines of a job, or what there is of them if it fails."""
        try:
            return self._launcher.run(ranks, program, words, variables, tell, ["--mps"] if mps else [])
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


def crossover(taken: Mapping[int, tuple[float, float]]) -> str:
    """Say from which size on tensors are better left in place, of what they take packed and in place."""
    first: int | None = None
    for size, (packed, in_place) in sorted(taken.items(), reverse=True):
        if in_place > packed:
            break
        first = size
    found = "no size that was measured is" if first is None else f"tensors of {format_size(first)} and more are"
    return f"{found} better reduced in place than packed; ours are from {format_size(LARGE_TENSOR)} on"


def tell(line: Line) -> None:
    """Say what the first rank has measured just now."""
    what = [str(line[key]) for key in ("work", "case", "dtype") if key in line]
    if line.get("bytes"):
        what.append(format_size(line["bytes"]))
    times = [key for key in ("median_us", "ours_us", "plain_us", "copies_us") if key in line]
    shown = ", ".join(f"{key.removesuffix('_us')} {format_time(line[key])}" for key in times)
    say(f"  {' '.join(what)}: {shown}")
