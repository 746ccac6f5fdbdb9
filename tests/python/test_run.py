"""``horovod.run``: functions called on real ranks through the installed launcher, and what it refuses before that."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horovod
import horovod.runner
import ronde
from horovod.common.exceptions import HorovodInternalError
from ranks import HERE
from ronde import _call, _run

SIGNATURE = """
    func args=() kwargs=None num_proc=1 min_num_proc=None max_num_proc=None slots=None reset_limit=None
    cooldown_range=None hosts=None hostfile=None host_discovery_script=None start_timeout=None ssh_port=None
    ssh_identity_file=None disable_cache=None output_filename=None verbose=None use_gloo=None use_mpi=None mpi_args=None
    network_interface=None network_interfaces=None executable=None np=None min_np=None max_np=None
"""


class NeedsTwo(Exception):  # noqa: N818
    """Can be pickled, but not unpickled: it is made of two things and remembers one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def place_and_sum(number: int, more: int = 0) -> tuple[int, int, float]:
    ronde.init()
    total = ronde.allreduce(np.array([float(number + more + ronde.rank())]), op=ronde.Sum)
    return ronde.rank(), ronde.size(), total.item()


def on_rank(rank: int, call: Any) -> Any:
    """Make a function that calls something on one rank, while the others wait for it."""

    def function() -> Any:
        ronde.init()
        if ronde.rank() == rank:
            return call()
        ronde.barrier()
        return None

    return function


def fails(error: Exception) -> Any:
    def function() -> None:
        raise error

    return function


def run_script(folder: Path, text: str, **variables: str) -> subprocess.Popen[str]:
    """Start a script in a process of its own."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, script],
        cwd=HERE,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_signature_is_horovods() -> None:
    def spelled(parameter: inspect.Parameter) -> str:
        return (
            parameter.name if parameter.default is inspect.Parameter.empty else f"{parameter.name}={parameter.default}"
        )

    assert horovod.run is horovod.runner.run
    parameters = inspect.signature(horovod.run).parameters.values()
    assert " ".join(map(spelled, parameters)) == " ".join(SIGNATURE.split())


# --- on real ranks


def test_results_come_back_by_rank() -> None:
    results = horovod.run(place_and_sum, args=(10,), kwargs={"more": 5}, num_proc=2)
    assert results == [(0, 2, 31.0), (1, 2, 31.0)]


def test_the_example_in_its_docstring_runs() -> None:
    result = doctest.testmod(_run)
    assert (result.attempted, result.failed) == (2, 0)


def test_one_process_is_the_default() -> None:
    assert horovod.run(place_and_sum, (1,)) == [(0, 1, 1.0)]


def test_lambdas_and_closures_are_called_with_what_they_hold() -> None:
    weights = np.arange(3.0)
    results = horovod.run(lambda scale: (weights * scale).tolist(), args=[2], num_proc=2)
    assert results == [[0.0, 2.0, 4.0]] * 2


def test_a_function_may_end_by_sys_exit_without_an_error() -> None:
    assert horovod.run(on_rank(0, sys.exit), num_proc=1) == [None]


def test_a_script_needs_no_guard_and_gets_its_own_classes_back(tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("NUMBER = 7\ndef number():\n    return NUMBER\n", encoding="utf-8")
    script = """
        import horovod, beside_the_script, sys

        class Model:
            def __init__(self, weight):
                self.weight = weight

        def train(weight):
            return Model(weight + beside_the_script.NUMBER)

        models = horovod.run(train, args=(1,), num_proc=2, verbose=0)
        numbers = horovod.run(beside_the_script.number, num_proc=1, verbose=0)
        print([type(model) is Model and model.weight for model in models], numbers)
    """
    output, _ = run_script(tmp_path, script).communicate(timeout=60)
    assert output == "[8, 8] [7]\n"


def test_a_module_that_calls_it_at_import_is_told_so_instead_of_starting_jobs_without_end(tmp_path: Path) -> None:
    module = "import horovod\n\ndef work():\n    return 1\n\nRESULT = horovod.run(work, num_proc=1, verbose=0)\n"
    (tmp_path / "calls_at_import.py").write_text(module, encoding="utf-8")
    output, _ = run_script(tmp_path, "import calls_at_import").communicate(timeout=60)
    assert "horovod.run was called by a module that a rank of horovod.run imports" in output
    assert "if __name__ == '__main__'" in output


def test_jobs_may_run_in_several_threads_at_once() -> None:
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(horovod.run, place_and_sum, (number,), num_proc=2) for number in (1, 2)]
        assert [job.result(timeout=60) for job in jobs] == [[(0, 2, 3.0), (1, 2, 3.0)], [(0, 2, 5.0), (1, 2, 5.0)]]


def test_an_exception_is_shown_once_as_the_rank_that_raised_it_saw_it(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError) as caught:
        horovod.run(on_rank(1, fails(FileNotFoundError("shard-1.tar is missing"))), num_proc=2)
    text = str(caught.value)
    assert text.startswith("Horovod detected that one or more processes exited")
    assert text.count("Traceback") == 1
    assert "Rank 1 on localhost failed first" in text
    assert f'"{__file__}"' in text
    assert text.endswith("FileNotFoundError: shard-1.tar is missing")
    assert "_task.py" not in text
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_an_exception_that_cannot_be_unpickled_is_shown_without_being_the_cause() -> None:
    with pytest.raises(RuntimeError, match="NeedsTwo: one two") as caught:
        horovod.run(lambda: fails(NeedsTwo("one ", "two"))(), num_proc=1)
    assert caught.value.__cause__ is None


def test_a_rank_that_exits_or_is_killed_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"^Horovod detected that .*\n.*[Rr]ank 1 .*\n[^$]*SystemExit: 3"):
        horovod.run(on_rank(1, lambda: sys.exit(3)), num_proc=2)
    with pytest.raises(RuntimeError, match=r"^Horovod detected that .*\n.*rank 1 .*signal 9") as caught:
        horovod.run(on_rank(1, lambda: os.kill(os.getpid(), signal.SIGKILL)), num_proc=2)
    assert "Traceback" not in str(caught.value)


def test_a_job_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"^Horovod could not run the job\.\n[^$]*/no/such/python"):
        horovod.run(place_and_sum, (1,), executable="/no/such/python")


def test_a_result_that_cannot_be_pickled_is_named_with_its_rank() -> None:
    expected = r"rank 1 cannot send back what the function returned, a _thread\.lock: TypeError: cannot pickle"
    with pytest.raises(RuntimeError, match=expected):
        horovod.run(on_rank(1, threading.Lock), num_proc=2)


def test_a_rank_that_leaves_without_a_result_is_named() -> None:
    with pytest.raises(RuntimeError, match="rank 0 has ended without a result"):
        horovod.run(lambda: os._exit(0), num_proc=1)


def speaks() -> None:
    print("größe", os.environ["HOROVOD_RANK"])
    print("oh", file=sys.stderr)


def test_output_arrives_in_objects_that_stand_for_files(capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        horovod.run(speaks, num_proc=2)
    assert sorted(out.getvalue().splitlines()) == ["[0] größe 0", "[1] größe 1"]
    assert {"[0] oh", "[1] oh"} <= set(err.getvalue().splitlines())
    assert "".join(capfd.readouterr()) == ""


def test_output_arrives_in_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "output"
    with file.open("w", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        print("before")
        horovod.run(speaks, num_proc=1, verbose=0)
        print("after")
    assert file.read_text(encoding="utf-8") == "before\n[0] größe 0\nafter\n"
    assert capfd.readouterr() == ("", "[0] oh\n")


def test_output_goes_where_the_script_prints_and_stays_in_order(tmp_path: Path) -> None:
    script = """
        import horovod
        print("before")
        horovod.run(lambda: print("during"), num_proc=1, verbose=0)
        print("after")
    """
    output, _ = run_script(tmp_path, script).communicate(timeout=60)
    assert output == "before\n[0] during\nafter\n"


class Refuses(io.StringIO):
    """A stream that fails when it is written to."""

    def write(self, _: str) -> int:
        raise OSError("the page was closed")


def test_a_stream_that_fails_ends_the_job_with_its_error() -> None:
    with contextlib.redirect_stdout(Refuses()), pytest.raises(OSError, match="the page was closed"):
        horovod.run(lambda: [print("x"), signal.pause()], num_proc=2)


WAITS_FOR_EVER = """
    import horovod

    def waits():
        import os, signal
        with open(os.environ["PIPE"], "w") as pipe:
            pipe.write(f"{os.getpid()}\\n")
        signal.pause()

    try:
        horovod.run(waits, num_proc=2, verbose=0)
    except KeyboardInterrupt:
        print("interrupted")
"""


@contextlib.contextmanager
def waiting_ranks(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Give a script whose two ranks wait for ever, and the descriptors of their processes."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    # Opened for both, so that it does not end between one rank's line and the other's.
    lines = os.open(pipe, os.O_RDWR)
    script = run_script(folder, WAITS_FOR_EVER, PIPE=str(pipe), TMPDIR=str(folder))
    ranks: list[int] = []
    try:
        while len(ranks) < 2:
            assert select.select([lines], [], [], 60)[0], "the ranks do not start"
            ranks += [os.pidfd_open(int(line)) for line in os.read(lines, 4096).split()]
        yield script, ranks
    finally:
        script.kill()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(rank, signal.SIGKILL)
            os.close(rank)
        os.close(lines)
        script.communicate(timeout=60)


def have_ended(processes: list[int], seconds: float) -> bool:
    """Wait for processes to end."""
    return all(select.select([process], [], [], seconds)[0] for process in processes)


def test_ctrl_c_ends_the_job_and_is_raised(tmp_path: Path) -> None:
    with waiting_ranks(tmp_path) as (script, ranks):
        os.kill(script.pid, signal.SIGINT)
        output, _ = script.communicate(timeout=60)
        assert output.endswith("interrupted\n")
        assert "Traceback" not in output
        assert have_ended(ranks, 0)
        assert list(tmp_path.glob("ronde-run-*")) == []


def test_the_job_ends_when_its_caller_is_killed(tmp_path: Path) -> None:
    with waiting_ranks(tmp_path) as (script, ranks):
        script.kill()
        assert have_ended(ranks, 10)


# --- what is refused, and what is passed on


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"hosts": "a:1", "hostfile": "hosts"}, "hosts and hostfile"),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi"),
        ({"num_proc": 0}, "at least 1 process"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        horovod.run(print, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_num_proc": 1},
        {"max_num_proc": 4},
        {"slots": 2},
        {"reset_limit": 3},
        {"cooldown_range": (1, 2)},
        {"host_discovery_script": "./hosts.sh"},
    ],
)
def test_elastic_jobs_are_refused_by_name(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(NotImplementedError, match=f"^{name}: elastic jobs"):
        horovod.run(print, num_proc=2, **arguments)


# Stands where the launcher is found; writes down how it was called and starts nothing.
LAUNCHER_THAT_ONLY_TAKES_NOTES = """\
#!{python}
import json, os, pathlib, sys
payload = next(word.partition("=")[2] for word in sys.argv if word.startswith("--task-payload="))
notes = {{"words": sys.argv[1:], "mode": oct(os.stat(payload).st_mode), "task": os.environ.get("RONDE_TASK_RESULT")}}
pathlib.Path(__file__).with_name("notes").write_text(json.dumps(notes))
"""


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that calls ``horovod.run`` with the launcher that only takes notes, and returns these."""
    launcher = tmp_path / "ronde"
    launcher.write_text(LAUNCHER_THAT_ONLY_TAKES_NOTES.format(python=sys.executable), encoding="utf-8")
    launcher.chmod(0o755)
    monkeypatch.setattr("ronde._launcher.program", lambda _: str(launcher))

    def call(**arguments: Any) -> dict[str, Any]:
        with pytest.raises(RuntimeError, match="without a result"):
            horovod.run(print, **arguments)
        return json.loads((tmp_path / "notes").read_text(encoding="utf-8"))

    return call


def options(notes: dict[str, Any]) -> list[str]:
    words: list[str] = notes["words"]
    assert words[0] == "run"
    return [word for word in words[1 : words.index("--")] if not word.startswith("--task-")]


def test_arguments_become_options_of_the_launcher(noted: Any) -> None:
    notes = noted()
    assert options(notes) == ["--num-proc=1"]
    assert notes["words"][-4:] == ["--", sys.executable, "-m", "ronde._task"]
    assert notes["mode"] == oct(0o100600)
    notes = noted(
        num_proc=3,
        hosts="a:2,b:1",
        start_timeout=5,
        ssh_port=12345,
        ssh_identity_file=Path("/keys/id"),
        disable_cache=True,
        output_filename="logs",
        verbose=1,
        use_mpi=True,
        mpi_args="-x A",
        network_interfaces=["eth0", "eth1"],
        executable="/opt/python",
    )
    assert options(notes) == [
        "--num-proc=3",
        "--hosts=a:2,b:1",
        "--start-timeout=5",
        "--ssh-port=12345",
        "--ssh-identity-file=/keys/id",
        "--disable-cache",
        "--output-filename=logs",
        "--verbose",
        "--mpi",
        "--mpi-args=-x A",
        "--network-interfaces=eth0,eth1",
    ]
    assert notes["words"][-3:] == ["/opt/python", "-m", "ronde._task"]
    notes = noted(num_proc=2, min_num_proc=2, max_num_proc=2, hostfile="hosts", use_gloo=True, verbose=0)
    assert options(notes) == ["--num-proc=2", "--hostfile=hosts", "--quiet", "--gloo"]


def test_old_names_of_arguments_work_and_warn(noted: Any) -> None:
    names = ["np", "min_np", "max_np", "network_interface"]
    with pytest.warns(DeprecationWarning, match="is deprecated, use") as warned:
        notes = noted(np=2, min_np=2, max_np=2, network_interface="eth0,eth1")
    assert [str(warning.message).split()[0] for warning in warned] == names
    assert {warning.filename for warning in warned} == {__file__}
    assert options(notes) == ["--num-proc=2", "--network-interfaces=eth0,eth1"]


# --- the rank's side, with files made by hand


def make_call(folder: Path, payload: bytes, **variables: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run what a rank runs; return how it ended and the outcome it left."""
    (folder / "payload").write_bytes(payload)
    (folder / "result").touch()
    names = {"RONDE_TASK_PAYLOAD": str(folder / "payload"), "RONDE_TASK_RESULT": str(folder / "result")}
    environment = {**os.environ, "PYTHONPATH": str(HERE), **names, **variables}
    command = [sys.executable, "-m", "ronde._task"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done, _call.read((folder / "result").read_bytes())


def task_variables() -> list[str]:
    return [name for name in os.environ if name.startswith("RONDE_TASK")]


def test_a_rank_leaves_what_the_function_returned(tmp_path: Path) -> None:
    done, outcome = make_call(tmp_path, _call.pack(task_variables, (), {}))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert outcome.value(0) == []


def test_a_rank_leaves_the_exception_and_fails_without_printing_it(tmp_path: Path) -> None:
    done, outcome = make_call(tmp_path, _call.pack(int, ("x",), {}), HOROVOD_HOSTNAME="gpu2")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert outcome.host == "gpu2"
    assert outcome.traceback == "ValueError: invalid literal for int() with base 10: 'x'\n"
    assert not outcome.follows
    assert isinstance(outcome.exception(), ValueError)


def test_what_follows_from_the_loss_of_another_rank_is_marked(tmp_path: Path) -> None:
    _, outcome = make_call(tmp_path, _call.pack(fails(HorovodInternalError("rank 1 was lost")), (), {}))
    assert outcome.follows


def test_a_missing_module_is_named_with_the_host_that_lacks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    module = folder / "only_here.py"
    module.write_text("def work(): pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    import only_here

    payload = _call.pack(only_here.work, (), {})
    module.unlink()
    _, outcome = make_call(tmp_path, payload, HOROVOD_HOSTNAME="gpu2")
    assert "No module named 'only_here': the function needs it" in outcome.words
    assert "on gpu2 cannot find it" in outcome.words


def test_another_python_is_refused_before_it_reads_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = _call.pack(print, (), {})
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    with pytest.raises(RuntimeError, match=r"comes from Python 3\.\d+, but .* is Python 3\.99"):
        _call.unpack(payload)


def test_an_outcome_that_is_cut_short_counts_as_none() -> None:
    whole = _call.raised(ValueError("x"), hidden=[__file__])
    assert isinstance(_call.read(whole), _call.Raised)
    assert [_call.read(whole[:length]) for length in range(len(whole))] == [None] * len(whole)


LOST = HorovodInternalError("rank 1 was lost")


@pytest.mark.parametrize(
    ("left", "failure", "words", "cause"),
    [
        (
            {0: LOST, 1: ValueError("bad shard")},
            "0\nsaid",
            "Rank 1 on .* failed first:\n\nValueError: bad shard",
            ValueError,
        ),
        ({0: KeyError("a"), 1: ValueError("b")}, "1\nsaid", "Rank 1 on .*\n\nValueError: b", ValueError),
        ({0: KeyError("a"), 1: ValueError("b")}, None, "Rank 0 on .*\n\nKeyError: 'a'", KeyError),
        ({0: LOST}, "1\nrank 1 was killed", "terminated.\nrank 1 was killed$", None),
        ({}, None, "The launcher has ended with status 9", None),
    ],
    ids=["the cause before its consequence", "as the launcher saw it", "by rank", "killed", "nothing is known"],
)
def test_of_several_failures_the_one_that_explains_is_shown(
    tmp_path: Path, left: dict[int, Exception], failure: str | None, words: str, cause: type[Exception] | None
) -> None:
    for rank, error in left.items():
        (tmp_path / f"rank.{rank}").write_bytes(_call.raised(error, hidden=[__file__]))
    if failure is not None:
        (tmp_path / "failure").write_text(failure, encoding="utf-8")
    with pytest.raises(RuntimeError, match=f"^Horovod detected [^$]*{words}") as caught:
        _run._results(9, 2, tmp_path)
    assert type(caught.value.__cause__) is (cause or type(None))


def test_without_cloudpickle_what_has_a_name_travels_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert _call.unpack(_call.pack(place_and_sum, (1,), {}))() == place_and_sum(1)
    with pytest.raises(ImportError, match=r"lambda.*pip install cloudpickle"):
        horovod.run(lambda: None)
    monkeypatch.setattr(place_and_sum, "__module__", "__main__")
    with pytest.raises(ImportError, match="part of the main script"):
        horovod.run(place_and_sum, (1,))


def test_with_cloudpickle_what_cannot_travel_is_named() -> None:
    with pytest.raises(pickle.PicklingError, match=r"print and its arguments cannot be sent .*_thread\.lock"):
        horovod.run(print, (threading.Lock(),))


def test_the_launcher_is_a_module_too() -> None:
    command = [sys.executable, "-m", "horovod.runner.launch", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["horovodrun", ronde.__version__]
