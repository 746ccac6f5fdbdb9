"""The cell magic ``%%ronde`` in a real kernel, with real ranks."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

import ronde
from kernel import Kernel, kernel, manager
from ranks import REPOSITORY
from ronde import _notebook_cell, _notebook_page, _run


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with kernel(tmp_path_factory.mktemp("notebook")) as running:
        yield running


SPEAKS_AND_SUMS = """\
%%ronde -np 2
import sys, numpy, ronde
ronde.init()
print("größe <b>", ronde.rank())
print("oh", file=sys.stderr)
ronde.allreduce(numpy.array([ronde.rank() + 1]), op=ronde.Sum).item(), ronde.rank()
"""


def test_a_cell_runs_on_every_rank_and_its_last_values_come_back_by_rank(notebook: Kernel) -> None:
    # Twice, since the first leaves a job, displays and names behind.
    for _ in range(2):
        ran = notebook.run(SPEAKS_AND_SUMS)
        assert (ran.status, ran.result, ran.error) == ("ok", "[(3, 0), (3, 1)]", "")
        assert ran.streams == {"stdout": "", "stderr": ""}
        assert ran.head.startswith("✓ done · 2 ranks on 1 host · ")
        assert [set(ran.rank(rank).splitlines()) for rank in (0, 1)] == [
            {f"[{rank}] größe <b> {rank}", f"[{rank}] oh"} for rank in (0, 1)
        ]
        assert [ran.is_open(rank) for rank in (0, 1)] == [True, False]
        assert "größe &lt;b&gt; 1" in ran.last[2]["text/html"]
        assert len(ran.displays) == 3


def test_results_are_python_objects_of_the_notebook(notebook: Kernel) -> None:
    notebook.run("class Model:\n    def __init__(self, weight): self.weight = weight")
    ran = notebook.run("%%ronde -np 2 --into models\nimport os\nModel(int(os.environ['HOROVOD_RANK']) + 5)")
    assert (ran.status, ran.result) == ("ok", None)
    assert notebook.run("[type(model) is Model and model.weight for model in models]").result == "[5, 6]"


@pytest.mark.parametrize(
    ("cell", "result"),
    [("value = 3", None), ("print()", None), ("3;", None), ("3", "[3]")],
    ids=["no expression", "nothing", "a semicolon", "a value"],
)
def test_nothing_is_shown_where_a_cell_would_show_nothing(notebook: Kernel, cell: str, result: str | None) -> None:
    ran = notebook.run(f"%%ronde -np 1\n{cell}")
    assert (ran.status, ran.result) == ("ok", result)


def test_names_of_the_notebook_travel_and_functions_see_what_the_cell_assigns(notebook: Kernel) -> None:
    notebook.run("import math as m\nscale, offset = 2, 1\ndef scaled(x):\n    return scale * x + offset")
    assert notebook.run("%%ronde -np 2\nscaled(10) + m.floor(0.5)").result == "[21, 21]"
    assert notebook.run("%%ronde -np 2\nscale = 5\nscaled(10)").result == "[51, 51]"
    assert notebook.run("scale").result == "2"


def test_a_function_of_the_notebook_runs_on_ranks_by_run(notebook: Kernel) -> None:
    notebook.run("from ronde import run\nstep = 3\ndef stepped(x):\n    print('at', x)\n    return x + step")
    ran = notebook.run("run(stepped, args=(4,), num_proc=2, verbose=0)")
    assert (ran.status, ran.result) == ("ok", "[7, 7]")
    assert sorted(ran.streams["stdout"].splitlines()) == ["[0] at 4", "[1] at 4"]


def test_the_rank_that_failed_first_is_shown_with_the_lines_of_the_cells(notebook: Kernel) -> None:
    notebook.run("def load(shard):\n    raise FileNotFoundError(f'{shard} is missing')")
    ran = notebook.run(
        "%%ronde -np 2\nimport ronde\nronde.init()\nif ronde.rank() == 1:\n    load('shard-1')\nronde.barrier()"
    )
    assert (ran.status, ran.result) == ("error", None)
    lines = ran.error.splitlines()
    assert lines[0] == "rank 1 on localhost failed first:"
    assert lines[1] == "Traceback (most recent call last):"
    number = int(notebook.run("len(In) - 2").result or 0)
    assert [line for line in lines if line.startswith("  Cell In[")] == [
        f"  Cell In[{number}], line 5, in <module>",
        f"  Cell In[{number - 1}], line 2, in load",
    ]
    assert "    load('shard-1')" in lines
    assert lines[-1] == "FileNotFoundError: shard-1 is missing"
    assert "site-packages" not in ran.error
    assert ran.head.startswith("✗ rank 1 failed · 2 ranks on 1 host")
    assert [ran.is_open(rank) for rank in (0, 1)] == [True, True]
    assert notebook.run("%%ronde -np 1\n'well'").result == "['well']"


def test_a_rank_that_is_killed_is_named_with_how_it_ended(notebook: Kernel) -> None:
    ran = notebook.run("%%ronde -np 2\nimport os, signal\nprint('x')\nos.kill(os.getpid(), signal.SIGKILL)")
    assert ran.status == "error"
    assert "failed first: killed by signal 9" in ran.error
    assert "Traceback" not in ran.error
    # Once is enough.
    assert "killed by signal 9" not in str(ran.last)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("import os\nos._exit(0)", "rank 0 has ended without a result"),
        ("import threading\nthreading.Lock()", "rank 0 cannot send back what the function returned, a _thread.lock"),
    ],
)
def test_a_result_that_does_not_come_back_is_said_in_a_few_lines(notebook: Kernel, cell: str, words: str) -> None:
    ran = notebook.run(f"%%ronde -np 1\n{cell}")
    assert ran.status == "error"
    assert words in ran.error
    assert "site-packages" not in ran.error
    assert ran.head.startswith("✗ ")


@contextlib.contextmanager
def pipe_for_ranks(folder: Path) -> Iterator[tuple[Path, Any]]:
    """Give a pipe, and a function that waits until so many ranks have written their number into it."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    # Opened for both, so that it does not end between one rank's line and the other's.
    lines = os.open(pipe, os.O_RDWR)
    ranks: list[int] = []

    def wait_for(count: int) -> list[int]:
        while len(ranks) < count:
            assert select.select([lines], [], [], 60)[0], "the ranks do not start"
            ranks.extend(os.pidfd_open(int(line)) for line in os.read(lines, 4096).split())
        return ranks

    try:
        yield pipe, wait_for
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(rank, signal.SIGKILL)
            os.close(rank)
        os.close(lines)


def waiting_cell(pipe: Path) -> str:
    return (
        "%%ronde -np 2\nimport os, signal\nprint('waits')\n"
        f"open({str(pipe)!r}, 'w').write(f'{{os.getpid()}}\\n')\nsignal.pause()"
    )


def test_the_stop_button_ends_all_ranks_and_the_next_cell_runs(notebook: Kernel, tmp_path: Path) -> None:
    with pipe_for_ranks(tmp_path) as (pipe, wait_for):
        cell = notebook.begin(waiting_cell(pipe))
        ranks = wait_for(2)
        notebook.manager.interrupt_kernel()
        ran = notebook.finish(cell)
        assert (ran.status, ran.result) == ("error", None)
        assert ran.error == "KeyboardInterrupt: the job was ended, and nothing of it is left running"
        assert ran.head.startswith("■ interrupted · 2 ranks on 1 host")
        assert all(select.select([rank], [], [], 0)[0] for rank in ranks)
        assert ran.rank(1) == "[1] waits"
    assert notebook.run("%%ronde -np 1\n1").result == "[1]"


def test_a_kernel_that_is_killed_leaves_no_rank(tmp_path: Path) -> None:
    with kernel(tmp_path) as running, pipe_for_ranks(tmp_path) as (pipe, wait_for):
        running.begin(waiting_cell(pipe))
        ranks = wait_for(2)
        running.manager.signal_kernel(signal.SIGKILL)
        assert all(select.select([rank], [], [], 10)[0] for rank in ranks)


def test_output_is_shown_while_the_job_runs(notebook: Kernel, tmp_path: Path) -> None:
    with pipe_for_ranks(tmp_path) as (pipe, wait_for):
        cell = notebook.begin(waiting_cell(pipe))
        notebook.until(cell, "[1] waits")
        wait_for(2)
        notebook.manager.interrupt_kernel()
        assert notebook.finish(cell).status == "error"


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%%ronde -np 1\nguard", "guard cannot be sent to the ranks (TypeError: cannot pickle '_thread.lock' object)"),
        ("%%ronde -np 1\nguarded()", "cannot pickle '_thread.lock' object), and guarded uses it; make it in this cell"),
        ("%%ronde -np none\n1", "argument -np/-n/--num-proc: 'none' is not a number from 1 on"),
        ("%%ronde -np 0\n1", "argument -np/-n/--num-proc: '0' is not a number from 1 on"),
        ("%%ronde -np\n1", "argument -np/-n/--num-proc: expected one argument"),
        ("%%ronde\n1", "-np is missing: say how many ranks to start, for example %%ronde -np 2"),
        ("%%ronde -np 2 -p 70000\n1", "argument -p/--ssh-port: '70000' is not a port"),
        ("%%ronde -np 2 --hostfile none\n1", "argument --hostfile: there is no file none"),
        ("%%ronde -np 2 -H a:1 --hostfile /dev/null\n1", "argument --hostfile: there is no file /dev/null"),
        ("%%ronde -np 1 --into 2x\n1", "argument --into: '2x' is not a name"),
        ("%%ronde -np 1 --into for\n1", "argument --into: 'for' is not a name"),
        ("%%ronde -np 1 --fast\n1", "there is no option '--fast'; the options are -np, -H, --hostfile,"),
        ("%%ronde -np 1 train.py\n1", "there is no place for 'train.py'"),
        ("%%ronde -np '1\n1", "cannot be split into words: No closing quotation"),
        ("%%ronde -np 1\n# nothing", "the cell has nothing to run below its first line"),
        ("%%ronde -np 1\nx = 1\n!ls", "line 3: '!ls' is for the notebook, but ranks run plain Python"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_fix_before_anything_starts(
    notebook: Kernel, cell: str, words: str
) -> None:
    notebook.run("import threading\nguard = threading.Lock()\ndef guarded():\n    return guard.locked()")
    ran = notebook.run(cell)
    assert ran.status == "error"
    assert ran.streams["stderr"].startswith("UsageError: %%ronde: ")
    assert words in ran.streams["stderr"]
    assert ran.displays == {}


def test_without_cloudpickle_the_cell_says_what_to_install(notebook: Kernel) -> None:
    notebook.run("import sys\nsys.modules['cloudpickle'] = None")
    ran = notebook.run("%%ronde -np 1\n1")
    notebook.run("del sys.modules['cloudpickle']")
    assert "the cell and its arguments cannot be sent to the ranks" in ran.streams["stderr"]
    assert "pip install cloudpickle" in ran.streams["stderr"]
    assert notebook.run("%%ronde -np 1\n1").result == "[1]"


def test_hosts_are_said_once(notebook: Kernel, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("localhost slots=2\n", encoding="utf-8")
    both = notebook.run(f"%%ronde -H localhost:2 --hostfile {file}\n1")
    assert "-H and --hostfile both say where to run: give one of them" in both.streams["stderr"]
    for where in (f"--hostfile {file}", "-H localhost:2"):
        assert notebook.run(f"%%ronde {where}\n1").result == "[1, 1]"


def test_a_cell_that_is_not_python_is_shown_by_its_own_line(notebook: Kernel) -> None:
    ran = notebook.run("%%ronde -np 1\nx = 1\nreturn x")
    assert ran.status == "error"
    assert ran.error.splitlines()[0].endswith("], line 3")
    assert ran.error.splitlines()[-1] == "SyntaxError: 'return' outside function"
    assert ran.displays == {}


def test_a_host_that_cannot_be_reached_is_said_with_the_hint(notebook: Kernel) -> None:
    ran = notebook.run("%%ronde -H no-such-host.invalid:1\n1")
    assert ran.status == "error"
    assert ran.error.startswith('error: there is no host called "no-such-host.invalid"\nhint: ')
    assert ran.head.startswith("✗ failed · 1 rank on 1 host")


def test_help_is_shown(notebook: Kernel) -> None:
    ran = notebook.run("%%ronde --help\n1")
    assert ran.status == "ok"
    assert "usage: %%ronde [-np N]" in ran.streams["stdout"]


def test_ranks_run_where_the_notebook_is_on_the_hosts_of_its_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "beside.py").write_text("NUMBER = 7\n", encoding="utf-8")
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=3\n", encoding="utf-8")
    with kernel(folder, RONDE_HOSTFILE=str(hosts)) as running:
        ran = running.run("%%ronde\nimport beside, os\nos.getcwd(), beside.NUMBER")
        assert ast.literal_eval(ran.result or "") == [(str(folder), 7)] * 3
        assert running.run("from ronde import run\nrun(max, args=(1, 2), num_proc=3, verbose=0)").result == "[2, 2, 2]"
        assert running.run("run(max, args=(1, 2), num_proc=4, verbose=0)").status == "error"
        hosts.unlink()
        gone = running.run("%%ronde -np 1\n1")
        assert gone.status == "error"
        assert str(hosts) in gone.error


IN_A_TERMINAL = """\
from IPython import get_ipython
shell = get_ipython()
shell.run_line_magic("load_ext", "ronde")
factor = 3
print(shell.run_cell_magic("ronde", "-np 2", "import os\\nprint('here')\\nfactor * int(os.environ['HOROVOD_RANK'])"))
"""


def test_in_a_terminal_output_is_the_launchers(tmp_path: Path) -> None:
    script = tmp_path / "script.ipy"
    script.write_text(IN_A_TERMINAL, encoding="utf-8")
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(script)]
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert sorted(done.stdout.splitlines()) == ["[0, 3]", "[0] here", "[1] here"], done.stderr


def test_the_package_needs_neither_ipython_nor_what_starts_jobs() -> None:
    code = "import sys, ronde; print({'IPython', 'ronde._run', 'ronde._notebook'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
    assert ronde.run is _run.run
    with pytest.raises(AttributeError, match="module 'ronde' has no attribute 'runs'"):
        ronde.runs  # noqa: B018


def test_the_example_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(REPOSITORY / "examples" / "ronde.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells), "it is kept without output"
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, manager(tmp_path), timeout=120, resources=resources).execute()
    last = next(cell for cell in reversed(notebook.cells) if cell.cell_type == "code")
    (output,) = (output for output in last.outputs if output.output_type == "execute_result")
    accuracies = ast.literal_eval(output.data["text/plain"])
    assert len(accuracies) == 2
    assert accuracies[0] == accuracies[1] > 0.9


# --- which names a cell uses


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("print(a, b.c[d])", {"print", "a", "b", "d"}),
        ("import a.b, c as d\na.b(d)", set()),
        ("x = x + 1\nx", {"x"}),
        ("x = 1\nx += 1", set()),
        ("for i in range(3):\n    x += i", {"range", "x"}),
        ("for i, a[j] in b:\n    pass\nelse:\n    i\ni", {"a", "j", "b", "i"}),
        ("if a:\n    b = 1\nb", {"a", "b"}),
        ("def f(x, y=a):\n    z = x\n    z += 1\n    return z, y, b\nf(1)", {"a", "b"}),
        ("def f():\n    global count\n    count += 1", {"count"}),
        ("class A(Base):\n    x = y\n    def f(self):\n        return self.x, z", {"Base", "y", "z"}),
        ("[x for x in xs if x > low]", {"xs", "low"}),
        ("with opened(a) as b, b.locked():\n    c = b.read()\nb, c", {"opened", "a"}),
        ("f = lambda x: x + y\nf(1)", {"y"}),
        ("f'{a} {b!r}'", {"a", "b"}),
    ],
)
def test_the_names_that_a_cell_reads_before_it_binds_them(cell: str, names: set[str]) -> None:
    assert set(_notebook_cell.used_names(ast.parse(cell))) == names


# --- the page


class Shown:
    """A display that remembers."""

    def __init__(self, bundle: dict[str, str]) -> None:
        self.bundles = [bundle]

    def update(self, bundle: dict[str, str]) -> None:
        self.bundles.append(bundle)


class Clock:
    """A time that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def page() -> tuple[_notebook_page.Page, list[Shown], Clock]:
    displays: list[Shown] = []
    clock = Clock()

    def display(bundle: dict[str, str]) -> Shown:
        displays.append(Shown(bundle))
        return displays[-1]

    return _notebook_page.Page(display, clock), displays, clock


def line(text: str, end: str = "newline", rank: int = 0, stream: str = "stdout") -> str:
    return json.dumps({"rank": rank, "stream": stream, "text": text, "end": end}, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([("1/2", "return"), ("2/2", "newline"), ("done", "newline")], "[0] 2/2\n[0] done"),
        (
            [("", "return"), ("1/2", "return"), ("2/2", "return"), ("", "newline"), ("done", "newline")],
            "[0] 2/2\n[0] done",
        ),
        ([("a", "newline"), ("", "newline"), ("b", "newline")], "[0] a\n[0] \n[0] b"),
        ([("a\u2028b\x85c", "newline")], "[0] a\u2028b\x85c"),
        ([("\x1b[31mred\x1b[0m \x1b]0;title\x07x", "newline")], "[0] red x"),
    ],
    ids=["a bar", "a bar that begins with a return", "an empty line", "odd ends", "colours"],
)
def test_lines_are_shown_as_a_terminal_shows_them(page: Any, pieces: list[tuple[str, str]], text: str) -> None:
    shown, displays, _ = page
    shown.streams[0].write('{"hosts":["localhost"]}\n')
    for piece, end in pieces:
        shown.streams[0].write(line(piece, end))
    shown.finish("✓ done")
    assert displays[1].bundles[-1]["text/plain"] == text


def test_the_page_is_told_a_few_times_a_second_of_what_is_new(page: Any) -> None:
    shown, displays, clock = page
    shown.streams[0].write('{"hosts":["a","b"]}\n')
    head, first, second = displays
    assert head.bundles[-1]["text/plain"] == "2 ranks on 2 hosts · 0 s"
    assert "<progress" in head.bundles[-1]["text/html"]
    for number in range(500):
        clock.now = number / 1000
        shown.streams[0].write(line(f"line {number}"))
        shown.look_up()
    assert len(first.bundles) == 2
    assert len(second.bundles) == 1
    clock.now = 1.5
    shown.look_up()
    assert first.bundles[-1]["text/plain"].splitlines()[0] == "[0] … 400 earlier lines are not shown"
    assert head.bundles[-1]["text/plain"] == "2 ranks on 2 hosts · 2 s"
    shown.finish("✓ done")
    assert first.bundles[-1]["text/plain"].splitlines()[0] == "[0] line 0"
    assert "<progress" not in head.bundles[-1]["text/html"]


def test_whom_the_launcher_waits_for_is_in_the_head_until_a_rank_speaks(page: Any) -> None:
    shown, displays, clock = page
    shown.streams[1].write("ronde · 1 rank on 1 host\nwaiting for <gpu1>\n")
    shown.streams[0].write('{"hosts":["gpu1"]}\n')
    assert displays[0].bundles[-1]["text/plain"].splitlines()[0] == "waiting for <gpu1> · 1 rank on 1 host · 0 s"
    assert "waiting for &lt;gpu1&gt;" in displays[0].bundles[-1]["text/html"]
    shown.streams[0].write(line("x"))
    clock.now = 2.0
    shown.look_up()
    assert displays[0].bundles[-1]["text/plain"].splitlines()[0] == "1 rank on 1 host · 2 s"
