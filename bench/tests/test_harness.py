"""The parts of the driver that decide something: layouts, which figure counts, and verdicts."""

# The names of tests say what docstrings would.
# ruff: noqa: D102, D103

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import jobs
from harness.aims import DDP, GLOO, IMPORT_AIM, KIB, MIB, OPEN_MPI, RONDE, TENSORFLOW, TIME_WAITED, Aim, Measure
from harness.cli import main
from harness.environment import SetupError, _made_whole, _unpacked_wheel
from harness.figures import Figures, one_launch
from harness.ground import Layout, this_machine
from harness.inhost import select
from harness.multihost import Case
from harness.report import Report, Row, format_size
from harness.training import SUITE
from peers.timed import exact_calls, measure


def line(rank: int, median: float, size: int = 4) -> dict[str, object]:
    times = {"min_us": median / 2, "median_us": median, "p90_us": median * 2, "mean_us": median}
    return {"work": "allreduce", "rank": rank, "bytes": size, "calls": 10, **times}


def test_unequal_hosts_have_the_local_and_cross_ranks_that_scripts_expect() -> None:
    places = Layout.parse("5+1").places()
    assert [place.rank for place in places] == [0, 1, 2, 3, 4, 5]
    assert [(place.local_rank, place.local_size) for place in places] == [*((rank, 5) for rank in range(5)), (0, 1)]
    assert [(place.cross_rank, place.cross_size) for place in places] == [(0, 2), *([(0, 1)] * 4), (1, 2)]
    assert [place.host for place in places] == [1, 1, 1, 1, 1, 2]


def test_equal_hosts_can_be_written_as_a_product() -> None:
    assert Layout.parse("2x4") == Layout.parse("4+4")


@pytest.mark.parametrize("text", ["", "4y1", "2x", "3+0", "-1x2"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match="is no layout"):
        Layout.parse(text)


def test_the_floor_counts_bytes_through_each_hosts_link() -> None:
    assert Case.parse("4x1@1gbit").floor_bytes(MIB) == 1.5 * MIB
    assert Case.parse("5+1@1gbit").floor_bytes(MIB) == MIB


def test_the_slowest_rank_counts_and_of_launches_the_median() -> None:
    figures = Figures()
    for slowest in (30.0, 10.0, 20.0):
        figures.add(RONDE, [line(0, 1.0), line(1, slowest)])
    assert figures.best_or_typical(RONDE, 4) == 20.0
    assert figures.best_or_typical(RONDE, 8) is None


def test_open_mpi_is_credited_with_its_best_launch() -> None:
    figures = Figures()
    for slowest in (30.0, 10.0, 20.0):
        figures.add(OPEN_MPI, [line(0, 1.0), line(1, slowest)])
    assert figures.best_or_typical(OPEN_MPI, 4) == 10.0


@pytest.mark.parametrize(
    ("kind", "bound", "ours", "theirs", "met"),
    [
        (Measure.FASTER, 5, 10.0, 50.0, True),
        (Measure.FASTER, 5, 10.0, 49.0, False),
        (Measure.WITHIN, 1.5, 15.0, 10.0, True),
        (Measure.WITHIN, 1.5, 16.0, 10.0, False),
        (Measure.SHARE, 0.97, 100.0, 97.0, True),
        (Measure.SHARE, 0.97, 100.0, 96.0, False),
        (Measure.BEYOND, 32, 132.0, 100.0, True),
        (Measure.BEYOND, 32, 133.0, 100.0, False),
        (Measure.ADDED, 50, 50.0, 4000.0, True),
        (Measure.ADDED, 50, 51.0, 4000.0, False),
        (Measure.FASTER, None, 10.0, 1.0, None),
    ],
)
def test_a_verdict_follows_from_the_ratio_and_the_aim(
    kind: Measure, bound: float | None, ours: float, theirs: float, met: bool | None
) -> None:
    assert Row.judge(Aim("work", (4,), RONDE, GLOO, kind, bound), 4, ours, theirs).met is met


def test_a_report_says_the_same_to_people_and_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = Figures()
    figures.add(RONDE, [line(0, 10.0)])
    figures.add(GLOO, [line(0, 80.0)])
    report = Report("bench/run test")
    report.compare(Aim("work", (4, 8), RONDE, GLOO, Measure.FASTER, 5), figures)
    report.keep("all", figures)
    report.print()
    report.write(tmp_path / "out.json")
    assert "8.00x as fast  at least 5x  met" in capsys.readouterr().out
    content = json.loads((tmp_path / "out.json").read_text())
    assert [(row["bytes"], row["ratio"], row["verdict"]) for row in content["rows"]] == [(4, 8.0, "met")]
    assert {launch["tool"] for launch in content["launches"]["all"]} == {RONDE, GLOO}


def test_sizes_narrow_the_aims_down() -> None:
    aims = select(["in-host latency, Rust"], [64 * KIB])
    assert {size for aim in aims for size in aim.sizes} == {64 * KIB}


def test_sizes_are_written_in_their_largest_unit() -> None:
    sizes = (4, 4 * KIB, 1000 * KIB, 64 * MIB)
    assert [format_size(size) for size in sizes] == ["4 B", "4 KiB", "1000 KiB", "64 MiB"]


def test_one_failing_process_ends_the_job_and_is_quoted() -> None:
    scripts = ["import signal; signal.pause()", "raise SystemExit('no such luck')"]
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for script in scripts
    ]
    with pytest.raises(jobs.JobError, match=r"process 1 failed with status 1: no such luck"):
        jobs._collect("test", processes)
    assert processes[0].returncode is not None


def test_lines_count_with_the_label_of_upstreams_launcher_and_without() -> None:
    script = """print('{"rank": 0}\\n[1]<stdout>:{"rank": 1}\\n[1]<stderr>:{"rank": 2}\\nhello')"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert jobs._collect("test", [process]) == [{"rank": 0}, {"rank": 1}]


def test_tools_take_turns_in_the_works_that_an_aim_compares_them_in() -> None:
    launched = []

    def tool(name: str) -> Callable[[str], list[dict[str, object]]]:
        return lambda work: launched.append((work, name)) or []

    SUITE.measure({name: tool(name) for name in (RONDE, GLOO, DDP)}, ["small", "resnet"], rounds=2)
    assert launched == [*[("small", RONDE), ("small", GLOO)] * 2, *[("resnet", RONDE), ("resnet", DDP)] * 2]


def test_processor_time_is_compared_with_the_time_waited() -> None:
    ranks = [{**line(rank, 10.0), "work": "waiting", "waited_us": 5000.0} for rank in (0, 1)]
    report = Report("bench/run test")
    SUITE.add(report, SUITE.measure({RONDE: lambda _work: ranks}, ["waiting"], rounds=1), ["waiting"], ranks=2)
    assert [(row.aim.theirs, row.ratio, row.met) for row in report.rows] == [(TIME_WAITED, 0.002, True)]


def test_figures_of_another_size_than_the_aims_are_refused() -> None:
    figures = SUITE.measure({RONDE: lambda _work: [line(0, 10.0, size=5)]}, ["named"], rounds=1)
    with pytest.raises(jobs.JobError, match=r"ronde measured 5 bytes in 'named', but the aims are for \[4\]"):
        SUITE.add(Report("bench/run test"), figures, ["named"], ranks=2)


def test_what_an_import_adds_is_shown_as_a_time_of_its_own() -> None:
    figures = Figures()
    figures.add(RONDE, [one_launch(0, 0.021)])
    figures.add(TENSORFLOW, [one_launch(0, 4.2)])
    report = Report("bench/run test")
    report.compare(IMPORT_AIM, figures)
    (row,) = report.rows
    assert row.cells()[1:] == ["-", RONDE, "21 ms", TENSORFLOW, "4.2 s", "21 ms more", "at most 50 ms", "met"]


def test_workers_of_tensorflow_are_told_all_addresses_and_their_own_place() -> None:
    script = "import json, os; print(json.dumps(json.loads(os.environ['TF_CONFIG'])))"
    with this_machine() as ground:
        lines = jobs.run_workers("test", ground, Layout((2,)), [sys.executable, "-c", script])
    assert [line["task"] for line in lines] == [{"type": "worker", "index": index} for index in (0, 1)]
    assert lines[0]["cluster"] == lines[1]["cluster"]
    assert len(set(lines[0]["cluster"]["worker"])) == 2


def test_a_folder_in_the_cache_is_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "entry"

    def fill(*steps: Callable[[Path], object]) -> None:
        with _made_whole(target) as scratch:
            for step in steps:
                step(scratch)

    with pytest.raises(FileNotFoundError):
        fill(lambda scratch: (scratch / "half").touch(), lambda scratch: (scratch / "missing").read_text())
    assert list(tmp_path.iterdir()) == []
    fill(lambda scratch: (scratch / "whole").touch())
    assert [path.name for path in target.iterdir()] == ["whole"]


def test_libraries_of_the_wheel_come_to_lie_beside_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDE_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "ronde-1.whl", "w") as wheel:
        for name in ("ronde/__init__.py", "ronde-1.data/platlib/ronde/libronde_x.so", "ronde-1.data/scripts/ronde"):
            wheel.writestr(name, name)
    package = _unpacked_wheel(tmp_path / "ronde-1.whl")
    assert sorted(path.name for path in (package / "ronde").iterdir()) == ["__init__.py", "libronde_x.so"]
    assert (package / "ronde-1.data" / "scripts" / "ronde").is_file()


def test_a_link_of_the_wrong_kind_is_refused() -> None:
    layout = Layout.parse("1+1")
    right = [
        {"work": "links", "rank": 0, "links": ["Itself", "Tcp"]},
        {"work": "links", "rank": 1, "links": ["Tcp", "Itself"]},
    ]
    jobs._check_links(right, layout)
    wrong = [right[0], {"work": "links", "rank": 1, "links": ["SharedMemory", "Itself"]}]
    with pytest.raises(jobs.WrongPathError, match="rank 1"):
        jobs._check_links(wrong, layout)


def test_a_size_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["host", "--sizes", "64parsecs"])
    assert "is no size" in capsys.readouterr().err


class OneRank:
    """A library of a single rank, whose sum can be made wrong."""

    rank, ranks = 0, 1

    def __init__(self, wrong_at: int | None = None) -> None:
        self.wrong_at = wrong_at

    def prepare(self, count: int, pattern: list[float], expected: list[float]) -> None:
        self.pattern, self.expected = [[values[index % 7] for index in range(count)] for values in (pattern, expected)]

    def fill(self) -> None:
        self.tensor = list(self.pattern)

    def barrier(self) -> None:
        pass

    def allreduce(self) -> None:
        if self.wrong_at is not None:
            self.tensor[self.wrong_at] += 1

    def is_expected(self, scale: float) -> bool:
        return self.tensor == [value * scale for value in self.expected]

    def maximum(self, value: float) -> float:
        return value


def test_times_are_reported_for_right_results_only() -> None:
    result = measure(OneRank(), 64, 0.001)
    assert result["bytes"] == 64
    with pytest.raises(Exception, match="sum over 1 ranks is wrong"):
        measure(OneRank(wrong_at=11), 64, 0.001)


@pytest.mark.parametrize(("ranks", "calls"), [(1, 100), (2, 100), (5, 9), (6, 8), (16, 29)])
def test_batches_are_as_long_as_sums_stay_exact(ranks: int, calls: int) -> None:
    assert exact_calls(ranks) == calls
