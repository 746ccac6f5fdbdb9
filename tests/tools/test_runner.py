"""How the steps of ``make test`` are ordered, run and reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from testing.results import Counts, counts, failures
from testing.runner import Outcome, Runner, Step, shell, took
from waiting import eventually

TOOLS = Path(__file__).parents[2] / "tools"

PYTEST = """\
=================================== FAILURES ===================================
E       assert 1 == 2
=========================== short test summary info ============================
FAILED tests/torch/test_names.py::test_a[x y] - assert 1 == 2
ERROR tests/torch/test_names.py::test_b - OSError: no port
=================== 1 failed, 3 passed, 2 skipped, 1 error in 4.25s ====================
"""

RUST = """\
     Running tests/integration/main.rs (target/debug/deps/integration-12ab)
test sums::are_right ... FAILED
---- sums::are_right stdout ----

thread 'sums::are_right' (4242) panicked at crates/engine/tests/integration/sums.rs:7:5:
assertion `left == right` failed
  left: 1
 right: 2
note: run with `RUST_BACKTRACE=1`

test result: FAILED. 7 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""


def runner(tmp_path: Path, *steps: Step, room: int = 2) -> Runner:
    return Runner(list(steps), tmp_path, room)


def names(steps: list[Step]) -> list[str]:
    return [step.name for step in steps]


def test_steps_start_in_order_while_there_is_room(tmp_path: Path) -> None:
    assert names(runner(tmp_path, *(Step(name, ()) for name in "abc")).next_steps()) == ["a", "b"]


def test_a_step_waits_for_what_it_needs_and_for_what_another_uses(tmp_path: Path) -> None:
    cargo = frozenset({"cargo"})
    steps = (
        Step("build", (), uses=cargo),
        Step("lint", (), uses=cargo),
        Step("run", (), ("build",)),
        Step("other", ()),
    )
    assert names(runner(tmp_path, *steps, room=4).next_steps()) == ["build", "other"]


def test_what_needs_the_machine_alone_is_not_overtaken_forever(tmp_path: Path) -> None:
    first = runner(tmp_path, Step("a", ()), Step("alone", (), alone=True), Step("b", ()), room=3)
    assert names(first.next_steps()) == ["a"]
    first.waiting.pop(0)
    assert names(first.next_steps()) == ["alone"]


def test_a_step_that_needs_a_failed_one_is_not_run_and_others_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = (
        Step("build", shell("echo 'error: no such file'; false")),
        Step("run", shell(f"touch {tmp_path}/ran"), ("build",)),
        Step("other", shell(f"touch {tmp_path}/other")),
    )
    ran = runner(tmp_path, *steps)
    assert not ran.run()
    ran.report()
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "other").exists()
    lines = capfd.readouterr().out.splitlines()
    assert any(line.split() == ["not", "run", "run", "needs", "build"] for line in lines), lines
    at = lines.index("failed: build")
    assert lines[at + 1 : at + 3] == ["  error: no such file", f"  log: {tmp_path / 'build.log'}"]


def test_failed_tests_and_their_log_come_last_and_the_counts_are_a_line_of_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "said").write_text(PYTEST)
    assert runner(tmp_path, Step("torch", shell(f"cat {tmp_path}/said; exit 1"), tests=True)).run_and_report() == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1] == "3 passed, 2 failed, 2 skipped"
    at = lines.index("failed: tests/torch/test_names.py::test_a[x y]")
    assert lines[at + 1 : at + 3] == ["  assert 1 == 2", f"  log: {tmp_path / 'torch.log'}"]


def test_tests_that_did_not_run_are_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert runner(tmp_path, Step("none", shell("echo no tests ran in 0.01s"), tests=True)).run_and_report() == 1
    assert "  no test ran" in capfd.readouterr().out.splitlines()


@pytest.mark.parametrize("which", ["plain", "system", "frameworks"])
def test_the_steps_of_every_target_have_names_of_their_own_and_needs_that_exist(tmp_path: Path, which: str) -> None:
    loader = SourceFileLoader("tools_test", str(TOOLS / "test"))
    program = module_from_spec(spec_from_loader("tools_test", loader))
    loader.exec_module(program)
    names = ["torch-newest", "keras-jax"]
    steps = program.frameworks(names) if which == "frameworks" else getattr(program, which)()
    assert any(step.tests for step in runner(tmp_path, *steps).waiting)


def test_two_steps_of_one_name_and_needs_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one name"):
        runner(tmp_path, Step("a", ()), Step("a", ()))
    with pytest.raises(ValueError, match="no steps"):
        runner(tmp_path, Step("a", (), ("b",)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_what_runs(tmp_path: Path, number: signal.Signals) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(TOOLS)!r})
from pathlib import Path
from testing.runner import Runner, Step, shell
steps = [Step("long", shell("echo $$ >{tmp_path}/pid; exec tail -f /dev/null"))]
sys.exit(Runner(steps, Path({str(tmp_path)!r}), room=1).run_and_report())
"""
    pid = tmp_path / "pid"
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        eventually(lambda: pid.exists() and pid.read_text().strip() != "", "the step runs")
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
    except BaseException:
        process.kill()
        process.wait()
        os.kill(int(pid.read_text()), signal.SIGKILL)
        raise


def test_counts_of_all_runners_are_added_up() -> None:
    assert counts(PYTEST) == Counts(passed=3, failed=2, skipped=2)
    assert counts(RUST) == Counts(passed=12, failed=1, skipped=2)
    assert counts("nothing of that kind") == Counts()


def test_a_failed_test_in_rust_is_told_with_its_executable_and_panic() -> None:
    (failure,) = failures("rust", RUST)
    assert failure.name == "sums::are_right (tests/integration/main.rs (target/debug/deps/integration-12ab))"
    assert failure.why == [
        "crates/engine/tests/integration/sums.rs:7:5:",
        "assertion `left == right` failed",
        "  left: 1",
        " right: 2",
    ]


def test_what_failed_without_a_test_is_told_by_the_compilers_errors_or_the_last_lines() -> None:
    assert failures("build", "a\nerror[E0308]: mismatched types\n  --> x\n")[0].why == [
        "error[E0308]: mismatched types"
    ]
    assert failures("build", "a\n\nb\n")[0].why == ["a", "b"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599, "59 min 59 s")]
)
def test_durations_are_written_as_people_do(seconds: float, words: str) -> None:
    assert took(seconds) == words


def test_a_profile_lists_what_took_most_processor_time_first(tmp_path: Path) -> None:
    done = runner(tmp_path)
    done.outcomes = {"a": Outcome(ok=True, seconds=2, cpu=1), "b": Outcome(ok=True, seconds=1, cpu=3)}
    assert done.profile() == ["step\tseconds\tcpu", "b\t1.0\t3.0", "a\t2.0\t1.0"]
