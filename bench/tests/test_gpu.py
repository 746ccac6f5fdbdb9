"""What drives the benchmark on a GPU: which bytes count, whose lines, and what a job that fails costs."""

# The names of tests say what docstrings would.
# ruff: noqa: D102, D103

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu import main as program
from gpu.aims import (
    COPY,
    DDP,
    FLOOR,
    FULL,
    GIB,
    GLOO_MPS,
    HANDOVER,
    IN_PLACE,
    KERNELS,
    LARGE_TENSOR,
    LAUNCH,
    PACKED,
    PARTS,
    RESNET_BYTES,
    RONDE_MPS,
    RONDE_NCCL,
    RONDE_NCCL_FP16,
    floor_bytes,
)
from gpu.launch import EarlyEndError, Launcher, follow, line_of
from gpu.suite import QUICK, Session, crossover, measure
from harness.aims import GLOO, KIB, MIB, RONDE
from harness.figures import Line
from harness.jobs import JobError
from harness.report import Report
from training.shapes import resnet50

FOUND = {"gpu": "some GPU", "torch": "2.11", "cuda": "13.0", "nccl": "2.28"}


def allreduce(rank: int, microseconds: float, size: int = 64 * MIB, dtype: str = FULL) -> Line:
    times = dict.fromkeys(("min_us", "median_us", "p90_us", "mean_us"), microseconds)
    return {"rank": rank, "work": "allreduce", "dtype": dtype, "bytes": size, "calls": 10, **times}


@dataclass(frozen=True)
class Canned(Launcher):
    """Jobs whose ranks have already printed what they would."""

    lines: Mapping[str, list[Line]]
    failing: Sequence[str]

    @classmethod
    def of(cls, lines: Mapping[str, list[Line]], failing: Sequence[str] = ()) -> Canned:
        return cls(Path(), Path(), Path(), lines, failing)

    def run(
        self,
        ranks: int,
        program: str,
        _words: Sequence[object],
        _variables: Mapping[str, str],
        tell: Callable[[Line], None],
        flags: Sequence[str] = (),
    ) -> list[Line]:
        name = " ".join([program, *flags])
        lines = [line for line in self.lines.get(name, self.lines.get(program, [])) if line["rank"] < ranks]
        for line in lines:
            tell(line)
        if name in self.failing or program in self.failing:
            raise EarlyEndError(f"{name} failed", lines)
        return lines


OURS = [
    # A GiB copied in a millisecond: two are read and written.
    {"rank": 0, "work": "copy", "bytes": GIB, "median_us": 1000.0},
    {"rank": 0, "work": "launch", "bytes": 0, "median_us": 8.0},
    *(allreduce(rank, 40.0 + rank, size=4) for rank in range(4)),
    *(allreduce(rank, 500.0 + rank) for rank in range(4)),
]
GLOOS = [*(allreduce(rank, 400.0, size=4) for rank in range(4)), *(allreduce(rank, 20e3) for rank in range(4))]
STEPS = [{"rank": 0, "work": "step", "case": "bf16", "ours_us": 2e4, "plain_us": 2e4, "ratio": 1.004, "noise": 0.002}]
PACKINGS = [
    {"rank": 0, "work": "packing", "case": "moved", "bytes": RESNET_BYTES, "ours_us": 110.0, "copies_us": 99.0},
    {"rank": 0, "work": "packing", "case": "scaled", "bytes": RESNET_BYTES, "ours_us": 200.0, "copies_us": 99.0},
]
# Four times as fast side by side.
OURS_BY_MPS = [
    {**line, **{key: value / 4 for key, value in line.items() if key.endswith("_us")}}
    if line["work"] == "allreduce"
    else line
    for line in OURS
]
SWITCHES = [
    {"rank": rank, "work": "switch", "case": case, "bytes": 0, "median_us": taken + rank}
    for rank in range(2)
    for case, taken in (("kernels", 151.0), ("handover", 6.0))
]
ALL = {
    "ours": OURS,
    "ours --mps": OURS_BY_MPS,
    "gloo": GLOOS,
    "steps": STEPS,
    "packing": PACKINGS,
    "switch": SWITCHES,
}


def rows(report: Report) -> list[tuple[str, int, str, str, float, bool | None]]:
    return [
        (row.aim.section, row.size, row.aim.ours, row.aim.theirs, round(row.ratio, 3), row.met) for row in report.rows
    ]


def test_the_floor_is_the_sum_of_what_each_rank_reads_and_writes() -> None:
    for ranks in (2, 4):
        size = 1200
        others = size - size // ranks
        packed, folded, taken = 2 * others, size + 2 * size // ranks, 2 * others
        assert floor_bytes(size, ranks) == ranks * (packed + folded + taken)


def test_the_gradients_are_as_many_bytes_as_the_aims_say() -> None:
    elements = 0
    for shape in resnet50():
        product = 1
        for length in shape:
            product *= length
        elements += product
    assert 4 * elements == RESNET_BYTES


def test_a_line_counts_if_a_rank_printed_it_as_a_result() -> None:
    assert line_of('[3] {"work": "copy", "bytes": 4}\n') == {"rank": 3, "work": "copy", "bytes": 4}
    for text in ('{"work": "copy"}', "[0] hello", '[0] {"work": "co', '[0] {"other": 1}'):
        assert line_of(text) is None


def test_ours_is_compared_with_gloo_the_floor_and_a_launch() -> None:
    report = Report("bench/run test")
    measure(report, Canned.of(ALL), FOUND, ["allreduce"], quick=True)
    two = "2 ranks on one GPU"
    assert rows(report)[:4] == [
        (two, 4, RONDE, LAUNCH, round(41 / 8, 3), None),
        (two, 4, RONDE, GLOO, round(400 / 41, 3), None),
        (two, 64 * MIB, RONDE, GLOO, round(20e3 / 501, 3), True),
        # 512 MiB at 2 GiB a millisecond.
        (two, 64 * MIB, RONDE, FLOOR, round(501 / 250, 3), None),
    ]
    assert {row.aim.section for row in report.rows} == {two, "4 ranks on one GPU"}


def test_the_floor_has_a_bound_only_where_no_turns_are_taken() -> None:
    report = Report("bench/run test")
    measure(report, Canned.of(ALL), FOUND, ["allreduce"], quick=True)
    of_two = [row for row in rows(report) if row[:2] == ("2 ranks on one GPU", 64 * MIB)]
    assert [row[2:] for row in of_two] == [
        (RONDE, GLOO, round(20e3 / 501, 3), True),
        (RONDE, FLOOR, round(501 / 250, 3), None),
        (RONDE_MPS, GLOO_MPS, round(80e3 / 501, 3), True),
        (RONDE_MPS, FLOOR, round(501 / 1000, 3), True),
        (RONDE_MPS, RONDE, 4.0, None),
    ]


def test_without_mps_the_rest_is_measured_all_the_same() -> None:
    report = Report("bench/run test")
    with pytest.raises(JobError, match="ours --mps failed"):
        measure(report, Canned.of({**ALL, "ours --mps": []}, ["ours --mps"]), FOUND, ["allreduce"], quick=True)
    assert {row.aim.ours for row in report.rows} == {RONDE}


def test_a_change_between_processes_is_what_kernels_add() -> None:
    report = Report("bench/run test")
    measure(report, Canned.of(ALL), FOUND, ["switch"], quick=True)
    manners = ["in turns", "side by side by MPS"]
    assert [row[:4] for row in rows(report)] == [
        (f"2 processes on one GPU, {manner}", 0, KERNELS, HANDOVER) for manner in manners
    ]
    assert [note for note in report.notes if "add 145 us" in note or "add 145 µs" in note]


def tensors(case: str, taken: Mapping[int, float]) -> list[Line]:
    return [
        {"rank": 0, "work": "threshold", "case": case, "bytes": size, "calls": 3}
        | dict.fromkeys(("min_us", "median_us", "p90_us", "mean_us"), microseconds)
        for size, microseconds in taken.items()
    ]


def test_the_threshold_is_where_packing_takes_longer_for_good() -> None:
    packed, in_place = {1: 5.0, 2: 9.0, 4: 9.0, 8: 30.0}, {1: 8.0, 2: 8.0, 4: 10.0, 8: 10.0}
    sizes = {size * MIB: (packed[size], in_place[size]) for size in packed}
    assert crossover(sizes).startswith("tensors of 8 MiB and more are better reduced in place")
    assert crossover({64 * KIB: (1.0, 8.0)}).startswith("no size that was measured is better reduced in place")
    report = Report("bench/run test")
    lines = tensors("packed", {256 * KIB: 1.0, 4 * MIB: 16.0, 16 * MIB: 64.0})
    measure(report, Canned.of({"threshold": lines}), FOUND, ["threshold"], quick=True)
    assert [row[2:5] for row in rows(report)] == [(IN_PLACE, PACKED, 1.0)] * 3
    assert any(note.endswith("ours are from 8 MiB on") for note in report.notes)


def test_the_threshold_that_is_compared_with_is_the_one_in_the_sources() -> None:
    source = Path(__file__).parents[2] / "crates/gpu/src/between/reduce.rs"
    assert f"const LARGE: usize = {LARGE_TENSOR // MIB} << 20;" in source.read_text()


def test_flags_for_the_launcher_stand_before_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr("gpu.launch.follow", lambda command, *_: commands.append(command) or [])
    launcher = Launcher(Path("ronde"), Path("site"), Path("python"))
    launcher.run(2, "switch", ["--rounds", 3], {}, lambda _line: None, ["--mps"])
    assert commands == [["ronde", "run", "-np", "2", "--mps", "python", "-m", "gpu.switch", "--rounds", "3"]]


def test_steps_and_packing_have_verdicts() -> None:
    report = Report("bench/run test")
    measure(report, Canned.of(ALL), FOUND, ["optimizer", "nccl", "packing"], quick=True)
    found = [(ours, theirs, ratio, met) for _, _, ours, theirs, ratio, met in rows(report)]
    assert found == [
        (RONDE, "plain PyTorch", 1.004, True),
        (RONDE_NCCL, "plain PyTorch", 1.004, True),
        (RONDE_NCCL_FP16, "plain PyTorch", 1.004, None),
        (DDP, "plain PyTorch", 1.004, None),
        (RONDE, COPY, 0.9, True),
        (RONDE, COPY, 0.495, False),
    ]
    assert any("0.20%" in note for note in report.notes)


def test_a_job_that_fails_costs_only_what_it_had_not_measured() -> None:
    report = Report("bench/run test")
    some = {**ALL, "gloo": GLOOS[:4]}
    failed = ["packing", "gloo", "gloo --mps", "gloo", "gloo --mps"]
    told = "\n".join(["not everything could be measured", *(f"{name} failed" for name in failed)])
    with pytest.raises(JobError, match=f"^{told}$"):
        measure(report, Canned.of(some, failing=["packing", "gloo"]), FOUND, [], quick=True)
    compared = {(row.aim.theirs, row.size) for row in report.rows}
    assert {(GLOO, 4), (FLOOR, 64 * MIB), (COPY, RESNET_BYTES)} <= compared
    assert (GLOO, 64 * MIB) not in compared


def test_a_job_that_fails_at_once_leaves_no_rows() -> None:
    report = Report("bench/run test")
    with pytest.raises(JobError, match="not everything could be measured"):
        measure(
            report,
            Canned.of({}, failing=["ours", "gloo", "steps", "packing", "threshold", "switch"]),
            FOUND,
            [],
            quick=True,
        )
    assert report.rows == []


def test_gloo_is_measured_once_for_each_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    measure(Report("bench/run test"), Canned.of(ALL), FOUND, ["allreduce", "host"], quick=True)
    said = capsys.readouterr().err.splitlines()
    for gloo in (GLOO, GLOO_MPS):
        assert sum(line.endswith(f"allreduce of 2 ranks: {gloo}") for line in said) == 1, said


def test_the_command_line_names_the_parts_that_there_are() -> None:
    assert tuple(Session(Report(""), Canned.of({}), QUICK).parts()) == PARTS


def test_a_job_that_does_not_end_is_ended_and_what_it_printed_is_kept() -> None:
    script = """import signal; print('[0] {"work": "copy"}', flush=True); print('stuck', flush=True); signal.pause()"""
    told: list[Line] = []
    with pytest.raises(EarlyEndError, match=r"did not end within 1 s:\n  stuck") as caught:
        follow([sys.executable, "-c", script], os.environ, told.append, deadline=1.0)
    assert caught.value.lines == told == [{"rank": 0, "work": "copy"}]


def test_a_job_that_fails_is_quoted() -> None:
    with pytest.raises(EarlyEndError, match=r"failed with status 1:\n  no such luck"):
        follow([sys.executable, "-c", "raise SystemExit('no such luck')"], os.environ, lambda _line: None)


def test_without_a_gpu_there_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert program.main(["--site", "site", "--ronde", "ronde"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith("error: ")
    assert "GPU" in line
