"""The cell magic ``%%ronde``: runs a cell of a notebook on every rank of a job.

The cell and what it uses go with the job as a call does (``_notebook_cell``), the output of the ranks comes back line
by line and is shown by the page (``_notebook_page``), and the value of the cell's last line on every rank is the
result. In a terminal, which has no page, the output is the launcher's own.

IPython is not needed to import this package, so only what runs inside it imports it.
"""

from __future__ import annotations

import argparse
import keyword
import linecache
import re
import shlex
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ronde import _notebook_cell, _run
from ronde._hosts import cluster_hostfile
from ronde._launcher import Stream, launch
from ronde._notebook_page import Page

_HELP = """\
Run this cell on every rank of a job, and return the value of its last line on each, by rank.

Names of the notebook that the cell uses travel to the ranks; what the cell assigns there stays there. The ranks run on
the hosts of the cluster that the notebook runs in, if it does, or else on this machine. The stop button ends all ranks.
"""


class _Shown(BaseException):
    """An exception whose words are all there is to show: the frames of this package tell nobody anything."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class JobError(_Shown, RuntimeError):
    """A job of ``%%ronde`` failed."""


class Interrupted(_Shown, KeyboardInterrupt):
    """A job of ``%%ronde`` was interrupted."""


class CellSyntaxError(_Shown, RuntimeError):
    """The cell cannot be compiled."""


def register(shell: Any) -> None:
    """Add the magic to an IPython shell."""
    from IPython.core.magic import output_can_be_silenced

    def ronde(line: str, cell: str) -> Any:
        return _magic(shell, line, cell)

    ronde.__doc__ = _parser().format_help()
    shell.register_magic_function(output_can_be_silenced(ronde), magic_kind="cell", magic_name="ronde")


def _magic(shell: Any, line: str, cell: str) -> list[Any] | None:
    from IPython.core.error import UsageError

    try:
        options = _parse(line)
    except _WrongOption as problem:
        raise UsageError(f"%%ronde: {problem}") from None
    if options.help:
        print(_parser().format_help())
        return None
    source = f"%%ronde {line}\n{cell}"
    file = shell.compile.cache(source, len(shell.history_manager.input_hist_parsed) - 1)
    try:
        payload = _pack(shell, source, file)
    except (_notebook_cell.CannotTravel, ImportError) as problem:
        raise UsageError(f"%%ronde: {problem}") from None
    found = _run_cell(shell, options, payload)
    if options.into is not None:
        shell.user_ns[options.into] = found
        return None
    return None if all(value is None for value in found) else found


def _pack(shell: Any, source: str, file: str) -> bytes:
    from IPython.core.error import UsageError

    cells = {
        name: "".join(entry[2])
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and shell.compile.format_code_name(name)
    }
    try:
        if not _notebook_cell.parse(source, file).body:
            raise UsageError("%%ronde: the cell has nothing to run below its first line")
        return _notebook_cell.pack(source, file, shell.user_ns, shell.user_ns_hidden, cells)
    except SyntaxError as error:
        text = (error.text or "").strip()
        if text.startswith(("%", "!")):
            raise UsageError(
                f"%%ronde: line {error.lineno}: {text!r} is for the notebook, but ranks run plain Python; "
                "put it into a cell of its own, or use subprocess.run"
            ) from None
        raise CellSyntaxError(
            _with_cells(shell, "".join(traceback.format_exception_only(type(error), error)))
        ) from None


def _run_cell(shell: Any, options: argparse.Namespace, payload: bytes) -> list[Any]:
    words = _run.spell(
        num_proc=options.num_proc,
        hosts=options.hosts,
        hostfile=options.hostfile,
        ssh_port=options.ssh_port,
        gpus_per_rank=options.gpus_per_rank,
        output_filename=options.output_filename,
        verbose=options.verbose,
    )
    words += [word for setting in options.env for word in ("--env", setting)]
    # Only a kernel has a page at its other end.
    page = Page(_Part) if hasattr(shell, "kernel") else _Terminal()
    with _run.job(payload) as (task, results):
        try:
            status = launch(["run", *words, *page.options, *task], page.streams, page.look_up)
            count = page.size or options.num_proc or len(list(results.glob("rank.*")))
            found = _run.values(status, count, results)
        except KeyboardInterrupt:
            page.finish("■ interrupted")
            raise Interrupted("KeyboardInterrupt: the job was ended, and nothing of it is left running") from None
        except RuntimeError as error:
            page.finish("✗ failed")
            raise JobError(str(error)) from error.__cause__
        except Exception:
            page.finish("✗ failed")
            raise
    if not isinstance(found, _run.Failure):
        page.finish("✓ done")
        return found
    # A job that was refused before it began has left no file about it.
    said = found.said if page.size else page.said or found.said
    page.finish("✗ failed" if found.rank is None else f"✗ rank {found.rank} failed", found.rank, said)
    raise _failure(shell, found, said)


def _failure(shell: Any, found: _run.Failure, said: str) -> JobError:
    if found.raised is None:
        return JobError(said.rstrip())
    trace = _with_cells(shell, found.raised.traceback)
    error = JobError(f"rank {found.rank} on {found.raised.host} failed first:\n{trace}")
    error.__cause__ = found.raised.exception()
    return error


def _with_cells(shell: Any, trace: str) -> str:
    """Call the cells in a traceback what the notebook calls them."""

    def cell(match: re.Match[str]) -> str:
        name = shell.compile.format_code_name(match[1])
        return f"{' '.join(name)}, line" if name else match[0]

    return re.sub(r'File "([^"\n]+)", line', cell, trace).rstrip()


class _Terminal:
    """Stands for a page where there is none: the launcher shows the output itself."""

    options: Sequence[str] = ()
    streams: Sequence[Stream] | None = None
    size = 0
    said = ""

    def look_up(self) -> None:
        """Show nothing."""

    def finish(self, end: str, failed: int | None = None, said: str = "") -> None:
        """Show nothing."""


class _Part:
    """A part of the cell's output that can be shown anew."""

    def __init__(self, bundle: dict[str, str]) -> None:
        from IPython.display import display

        self._handle = display(bundle, raw=True, display_id=True)

    def update(self, bundle: dict[str, str]) -> None:
        self._handle.update(bundle, raw=True)


# --- options


class _WrongOption(Exception):  # noqa: N818
    """What was typed behind ``%%ronde`` cannot be meant."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _WrongOption(message)


def _parse(line: str) -> argparse.Namespace:
    parser = _parser()
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise _WrongOption(f"{line!r} cannot be split into words: {error}") from None
    options, rest = parser.parse_known_args(words)
    if rest:
        known = ", ".join(action.option_strings[0] for action in parser._actions)
        what = "option" if rest[0].startswith("-") else "place for"
        raise _WrongOption(f"there is no {what} {rest[0]!r}; the options are {known}, and the cell is what runs")
    if options.hosts is not None and options.hostfile is not None:
        raise _WrongOption("-H and --hostfile both say where to run: give one of them")
    if options.hosts is None and options.hostfile is None:
        options.hostfile = cluster_hostfile()
        if options.hostfile is None and options.num_proc is None and not options.help:
            raise _WrongOption("-np is missing: say how many ranks to start, for example %%ronde -np 2")
    return options


def _parser() -> _Parser:
    parser = _Parser(
        prog="%%ronde",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("-np", "-n", "--num-proc", type=_number, metavar="N", help="how many ranks; without it, all slots of the hosts")
    add("-H", "--hosts", metavar="HOST:SLOTS,…", help="where to run, as in gpu1:2,gpu2:2")
    add("--hostfile", type=_file, metavar="FILE", help="the same from a file, with a line `gpu1 slots=2` for each host")
    add("-p", "--ssh-port", type=_port, metavar="PORT", help="the port of the hosts' ssh servers")
    add("--into", type=_name, metavar="NAME", help="assign the list of results to this name instead of showing it")
    add("--gpus-per-rank", type=_number, metavar="N", help="give each rank N GPUs of its own")
    add("-x", "--env", action="append", default=[], metavar="NAME[=VALUE]", help="set a variable for every rank")
    add("--output-filename", metavar="DIR", help="also write each rank's output to files in this folder")
    add("--verbose", action="store_true", help="have the launcher say more")
    add("-h", "--help", action="store_true", help="show this")
    return parser


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on, such as 4")
    return int(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, a number from 1 to 65535 such as 12345")
    return int(text)


def _file(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}; a line of it names a host, as in `gpu1 slots=2`")
    return path


def _name(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name that Python can assign to, such as losses")
    return text
