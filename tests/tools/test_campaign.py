"""What a campaign decides: which run is next, what a run counts for, which tests failed, and what is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from campaign import cargo_tests, report
from campaign.fingerprints import Fingerprints, modules_of, searched
from campaign.outcomes import failures
from campaign.pytest_files import PythonFile, python_files, set_up
from campaign.record import Record, Run
from campaign.report import Named
from campaign.schedule import Candidate, Kind, Mode, next_run, seconds_missing
from campaign.supervise import Ended
from suites import SUITES, SetUp

OK = Ended(0, 1.0, hung=False, left=())
FAILED = Ended(101, 1.0, hung=False, left=())


def candidate(words: str, kind: Kind = Kind.RUST) -> Candidate:
    """Return a candidate by its name, mode, runs and seconds."""
    name, mode, runs, seconds = words.split()
    return Candidate(name, kind, Mode(mode), int(runs), None if seconds == "-" else float(seconds))


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        # Goals are 5 idle runs and 20 under load.
        (["a idle 1 1", "a load 3 1"], "a load"),
        (["a idle 1 1", "a load 5 1"], "a idle"),
        (["a idle 5 1", "a load 19 9"], "a load"),
        # Of those that ran as often, the shortest; what never ran comes first.
        (["a load 2 3", "b load 2 2"], "b load"),
        (["a load 0 3", "b load 0 -"], "b load"),
        (["b load 0 -", "a load 0 -"], "a load"),
        # It goes on after the goals.
        (["a idle 6 1", "a load 21 1"], "a load"),
    ],
)
def test_what_ran_least_is_next(candidates: list[str], chosen: str) -> None:
    found = next_run(map(candidate, candidates))
    assert f"{found.name} {found.mode.value}" == chosen


def test_python_files_run_idle_once_all_goals_are_reached() -> None:
    idle, behind = candidate("a idle 0 1", Kind.PYTHON), candidate("a load 4 9", Kind.PYTHON)
    assert next_run([idle, behind]) is behind
    reached = candidate("a load 5 9", Kind.PYTHON)
    assert next_run([idle, reached]) is idle
    assert idle.missing == reached.missing == 0


def test_the_time_that_is_missing_is_that_of_the_missing_runs() -> None:
    assert seconds_missing([candidate("a idle 3 10"), candidate("a load 20 10"), candidate("b idle 0 -")]) == 20


LIBTEST = """\
running 3 tests
test one ... ok
test two ... words of a child
FAILED
test three ... FAILED

failures:

---- two stdout ----
failures:
none

failures:
    three
    two

test result: FAILED. 1 passed; 2 failed
"""
PYTEST = """\
..FE
=========================== short test summary info ============================
FAILED tests/a.py::test_one[a - b] - AssertionError: assert 1 == 2
FAILED tests/a.py::test_two
ERROR tests/a.py::test_three - OSError
ERROR tests/b.py - ImportError
"""
LONG = """\
test slow ... ok
test slow has been running for over 60 seconds
test stuck has been running for over 60 seconds
test slow ... ok
"""
STACK = """\
Fatal Python error: Aborted

Current thread 0x00007f96ecc2eb80 (most recent call first):
  File "/usr/lib/python3.11/subprocess.py", line 1209 in wait
  File "/ronde/tests/python/test_job.py", line 4 in launch
  File "/ronde/tests/python/test_job.py", line 7 in test_stuck
  File "/site-packages/_pytest/python.py", line 187 in pytest_pyfunc_call
"""


@pytest.mark.parametrize(
    ("kind", "ended", "output", "failed"),
    [
        (Kind.RUST, OK, "test one ... ok\n", []),
        (Kind.RUST, FAILED, LIBTEST, ["three", "two"]),
        (Kind.RUST, FAILED, "thread panicked", ["(exit status 101)"]),
        (Kind.RUST, Ended(-6, 1.0, hung=False, left=()), "", ["(killed by SIGABRT)"]),
        (Kind.RUST, Ended(-9, 1.0, hung=True, left=()), LONG, ["stuck (hung)"]),
        (Kind.RUST, Ended(-9, 1.0, hung=True, left=()), "", ["(hung)"]),
        (Kind.RUST, Ended(0, 1.0, hung=False, left=("7 sleep",)), "", ["(left processes)"]),
        (Kind.RUST, Ended(101, 1.0, hung=False, left=("7 sleep",)), "", ["(exit status 101)", "(left processes)"]),
        (
            Kind.PYTHON,
            Ended(1, 1.0, hung=False, left=()),
            PYTEST,
            ["tests/a.py::test_one[a", "tests/a.py::test_two", "tests/a.py::test_three", "tests/b.py"],
        ),
        (Kind.PYTHON, Ended(-6, 1.0, hung=True, left=()), STACK, ["test_stuck (hung)"]),
        (Kind.PYTHON, Ended(5, 1.0, hung=False, left=()), "no tests ran", ["(exit status 5)"]),
        (Kind.PYTHON, OK, "FAILED tests/a.py::test_one is what a passing test printed", []),
    ],
)
def test_the_tests_that_failed_are_named(kind: Kind, ended: Ended, output: str, failed: list[str]) -> None:
    assert failures(kind, ended, output) == failed


def run_of(name: str, mode: str = "load", contents: str = "new", seconds: float = 1.0, *failed: str) -> Run:
    return Run(name, mode, contents, "abc", "now", seconds, failed, "a.log" if failed else "")


def test_only_runs_of_the_present_contents_count_but_all_failures_are_listed() -> None:
    runs = [
        run_of("a", "load", "old", 9.0, "broken"),
        run_of("a", "load", "old", 9.0),
        run_of("a", "load", "new", 2.0),
        run_of("b", "idle", "new", 1.0, "shaky", "(left processes)"),
        run_of("b", "load", "new", 1.0, "shaky"),
    ]
    fingerprints = {"a": "new", "b": "new"}
    found = report.candidates([Named("a", Kind.RUST), Named("b", Kind.RUST)], fingerprints, runs)
    assert [(one.name, one.mode.value, one.runs, one.seconds) for one in found] == [
        ("a", "idle", 0, 2.0),
        ("a", "load", 1, 2.0),
        ("b", "idle", 1, 1.0),
        ("b", "load", 1, 1.0),
    ]
    assert [line.split() for line in report.table(found, fingerprints, runs)] == [
        ["idle", "load", "failures"],
        ["a", "0/5", "1/20", "-"],
        ["b", "1/5", "1/20", "2"],
    ]
    assert list(report.failed_tests(fingerprints, runs)) == [
        "FAILED 1 time: a broken (last at abc, load, changed since): a.log",
        "FAILED 1 time: b (left processes) (last at abc, idle): a.log",
        "FAILED 2 times: b shaky (last at abc, load): a.log",
    ]
    assert report.fails(fingerprints, runs)
    assert not report.fails({"a": "new", "b": "newer"}, runs)


def test_the_distance_to_the_goal_is_in_units_runs_and_minutes() -> None:
    done = [candidate("a idle 5 60"), candidate("a load 20 60")]
    assert report.distance(done) == "long enough: every goal is reached"
    behind = [*done, candidate("b idle 3 60"), candidate("b load 20 60"), candidate("c load 4 60", Kind.PYTHON)]
    assert report.distance(behind) == (
        "not long enough yet: 1 of 2 Rust executables and 0 of 1 Python files are done; "
        "3 runs are missing, about 3 min by the times of past runs"
    )
    assert "more than 0 min" in report.distance([candidate("a load 0 -")])


def test_a_record_keeps_runs_and_survives_a_line_that_was_cut_short(tmp_path: Path) -> None:
    record = Record(tmp_path)
    assert record.runs() == []
    first, second = run_of("a"), run_of("b", "idle", "new", 1.0, "one", "two")
    record.add(first)
    with (tmp_path / "runs.jsonl").open("a") as lines:
        lines.write('{"name": "cut')
    assert record.runs() == [first]
    record.add(second)
    assert record.runs() == [first, second]


def test_what_is_forgotten_is_gone_with_its_logs(tmp_path: Path) -> None:
    record = Record(tmp_path)
    for name in ("a", "b"):
        record.running_log.write_text(name)
        log = record.keep_log(f"tests/{name}.py", "load", "2026")
        record.add(Run(name, "load", "new", "abc", "now", 1.0, ("broken",), log))
    record.forget(lambda name: name == "a")
    assert [run.name for run in record.runs()] == ["b"]
    assert [log.read_text() for log in (tmp_path / "logs").iterdir()] == ["b"]


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    """Make a folder of tests with helpers, one of which another folder has."""
    texts = {
        "own/test_it.py": "import json, os.path\nfrom shared import thing\n",
        "own/test_other.py": "",
        "own/conftest.py": "import deep.inner\n",
        "shared/shared.py": "import further\n",
        "shared/further.py": "",
        "shared/unused.py": "",
        "shared/deep/__init__.py": "",
        "shared/deep/inner.py": "from . import nearby\n",
        "shared/deep/nearby.py": "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_test_file_counts_with_the_modules_that_it_uses(tests: Path) -> None:
    found = [str(path.relative_to(tests)) for path in modules_of(tests / "own" / "test_it.py", [tests / "shared"])]
    assert found == [
        "own/conftest.py",
        "own/test_it.py",
        "shared/deep/__init__.py",
        "shared/deep/inner.py",
        "shared/deep/nearby.py",
        "shared/further.py",
        "shared/shared.py",
    ]


def test_modules_are_looked_for_where_pytest_does() -> None:
    assert {"bench", "python", "tools"} <= {folder.name for folder in searched()}


RECORD = """\
ronde/__init__.py,sha256=aaa,10
ronde/__pycache__/__init__.pyc,,
ronde-0.1.0.dist-info/direct_url.json,sha256=bbb,20
"""


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda text: text.replace("aaa", "ccc"), True),
        (lambda text: text + "ronde/added.py,sha256=ddd,1\n", True),
        (lambda text: text.replace("bbb", "ccc"), False),
        (lambda text: text.replace("__init__.pyc,,\n", "__init__.pyc,,\nronde/__pycache__/_core.pyc,,\n"), False),
    ],
)
def test_a_wheel_is_known_by_its_files_not_by_where_it_was(
    tmp_path: Path, change: Callable[[str], str], differs: bool
) -> None:
    record = tmp_path / "RECORD"
    record.write_text(RECORD)
    before = Fingerprints().of([record])
    record.write_text(change(RECORD))
    assert (Fingerprints().of([record]) != before) is differs


def test_a_fingerprint_follows_the_contents(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    other.write_text("2")
    fingerprints = Fingerprints()
    before = fingerprints.of([one, other])
    one.touch()
    assert fingerprints.of([one, other]) == before
    other.write_text("changed")
    assert fingerprints.of([one, other]) != before


def artifact(folder: str, kind: str, name: str, files: list[str], test: bool) -> dict[str, object]:
    return {
        "reason": "compiler-artifact",
        "manifest_path": f"{folder}/Cargo.toml",
        "target": {"kind": [kind], "name": name},
        "profile": {"test": test},
        "filenames": files,
        "executable": files[0] if kind != "cdylib" else None,
    }


def test_an_executable_counts_with_the_programs_and_libraries_of_its_package() -> None:
    messages = [
        artifact("/ws/one", "lib", "one", ["/t/one-1"], True),
        artifact("/ws/one", "test", "jobs", ["/t/jobs-1"], True),
        artifact("/ws/one", "bin", "one", ["/t/one"], False),
        artifact("/ws/one", "cdylib", "one", ["/t/libone.so", "/t/libone.rlib"], False),
        artifact("/ws/two", "bin", "two", ["/t/two"], False),
        {"reason": "build-finished", "success": True},
    ]
    folder = Path("/ws/one")
    wanted = [cargo_tests.Target("one::jobs", "one", folder), cargo_tests.Target("one", "one", folder)]
    jobs, library = cargo_tests.units(wanted, messages, (("RONDE_PTXAS", "/ptxas"),))
    assert (jobs.command, library.command) == (("/t/jobs-1", "--include-ignored"), ("/t/one-1", "--include-ignored"))
    assert [str(path) for path in jobs.inputs] == ["/t/jobs-1", "/t/libone.so", "/t/one"]
    assert jobs.folder == folder
    assert dict(jobs.environment) == {"CARGO_MANIFEST_DIR": "/ws/one", "RONDE_PTXAS": "/ptxas"}


def test_a_suite_that_needs_root_is_left_out_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    units, left_out = set_up([file for file in python_files() if file.suite.root])
    assert units == []
    assert [line.partition(" (")[0] for line in left_out] == [
        f"left out: suite {suite.name}: needs root" for suite in SUITES if suite.root
    ]


def test_a_suite_whose_set_up_fails_is_left_out_with_the_reason() -> None:
    suite = replace(SUITES[0], setup=(SetUp("possible", "true"), SetUp("impossible", "exit 3")))
    units, left_out = set_up([PythonFile("tests/one.py", suite), PythonFile("tests/two.py", suite)])
    assert (units, left_out) == ([], [f"left out: suite {suite.name}: this failed with status 3: bash -c exit 3"])
