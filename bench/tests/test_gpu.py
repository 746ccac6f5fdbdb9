"""What drives the benchmark on a GPU: which bytes count, whose lines, and what a job that fails costs."""

# The names of tests say what docstrings would.
# ruff: noqa: D102, D103

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu import main as program
from gpu.aims import COPY, FLOOR, FULL, GIB, LAUNCH, PARTS, RESNET_BYTES, RONDE_NCCL, floor_bytes
from gpu.launch import EarlyEndError, Launcher, follow, line_of
from gpu.suite import QUICK, Session, measure
from harness.aims import GLOO, MIB, RONDE
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
    ) -> list[Line]:
        lines = [line for line in self.lines.get(program, []) if line["rank"] < ranks]
        for line in lines:
            tell(line)
        if program in self.failing:
            raise EarlyEndError(f"{program} failed", lines)
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
PACKED = [
    {"rank": 0, "work": "packing", "case": "moved", "bytes": RESNET_BYTES, "ours_us": 110.0, "copies_us": 99.0},
    {"rank": 0, "work": "packing", "case": "scaled", "bytes": RESNET_BYTES, "ours_us": 200.0, "copies_us": 99.0},
]
ALL = {"ours": OURS, "gloo": GLOOS, "steps": STEPS, "packing": PACKED}


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
        (two, 64 * MIB, RONDE, FLOOR, round(501 / 250, 3), False),
    ]
    assert {row.aim.section for row in report.rows} == {two, "4 ranks on one GPU"}


def test_steps_and_packing_have_verdicts() -> None:
    report = Report("bench/run test")
    measure(report, Canned.of(ALL), FOUND, ["optimizer", "packing"], quick=True)
    found = [(ours, theirs, ratio, met) for _, _, ours, theirs, ratio, met in rows(report)]
    assert found == [
        (RONDE, "plain PyTorch", 1.004, True),
        (RONDE_NCCL, "plain PyTorch", 1.004, True),
        (RONDE, COPY, 0.9, True),
        (RONDE, COPY, 0.495, False),
    ]
    assert any("0.20%" in note for note in report.notes)


def test_a_job_that_fails_costs_only_what_it_had_not_measured() -> None:
    report = Report("bench/run test")
    some = {**ALL, "gloo": GLOOS[:4]}
    told = "not everything could be measured\npacking failed\ngloo failed\ngloo failed"
    with pytest.raises(JobError, match=f"^{told}$"):
        measure(report, Canned.of(some, failing=["packing", "gloo"]), FOUND, [], quick=True)
    compared = {(row.aim.theirs, row.size) for row in report.rows}
    assert {(GLOO, 4), (FLOOR, 64 * MIB), (COPY, RESNET_BYTES)} <= compared
    assert (GLOO, 64 * MIB) not in compared


def test_a_job_that_fails_at_once_leaves_no_rows() -> None:
    report = Report("bench/run test")
    with pytest.raises(JobError, match="not everything could be measured"):
        measure(report, Canned.of({}, failing=["ours", "gloo", "steps", "packing"]), FOUND, [], quick=True)
    assert report.rows == []


def test_gloo_is_measured_once_for_each_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    measure(Report("bench/run test"), Canned.of(ALL), FOUND, ["allreduce", "host"], quick=True)
    assert capsys.readouterr().err.count("allreduce of 2 ranks: Gloo") == 1


def test_the_command_line_names_the_parts_that_there_are() -> None:
    assert tuple(Session(Report(""), Canned.of({}), QUICK).parts()) == PARTS


def test_a_job_that_does_not_end_is_ended_and_what_it_printed_is_kept() -> None:
    script = """import time; print('[0] {"work": "copy"}', flush=True); print('stuck', flush=True); time.sleep(1000)"""
    started = time.monotonic()
    told: list[Line] = []
    with pytest.raises(EarlyEndError, match=r"did not end within 1 s:\n  stuck") as caught:
        follow([sys.executable, "-c", script], os.environ, told.append, deadline=1.0)
    assert caught.value.lines == told == [{"rank": 0, "work": "copy"}]
    assert time.monotonic() - started < 60


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
