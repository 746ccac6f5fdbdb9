"""``horovod.run``: calls a function on many ranks from a Python program or a notebook, and returns what it returned.

The call becomes a file and the file goes with a job of the ordinary launcher (``_launcher``), whose ranks make the call
(``_task``). Arguments are checked here as far as they exclude each other; what hosts, ports and files are like is for
the launcher to say, which knows more about them.

Besides the outcome of every rank (``rank.N``), the launcher leaves a file ``failure`` when the job fails: the first
line is the rank that failed first, or empty where it is not about a rank; the rest is what it says about it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ronde import _call
from ronde._hosts import cluster_hostfile
from ronde._launcher import launch

_FAILED = (
    "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated."
)


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | os.PathLike[str] | None = None,
    disable_cache: bool | None = None,
    output_filename: str | os.PathLike[str] | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | os.PathLike[str] | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on every rank of a new job and return the results, by rank.

    The other arguments are those of ``horovodrun``; without ``hosts`` and ``hostfile`` the ranks run on the hosts of
    the cluster that this program runs in, if it does (see ``docs/notebook.md``), or else on this machine. ``verbose``
    makes the launcher say more, and 0 makes it say nothing but errors. ``executable`` is the Python of the ranks, this
    one if not given. If a rank raises, the job ends with a ``RuntimeError`` that shows the traceback of the rank that
    failed first; its cause is the exception, where that can be pickled.

    >>> from ronde import run
    >>> run(pow, args=(2, 10), num_proc=2, verbose=0)
    [1024, 1024]
    """
    if np is not None:
        num_proc = _renamed("np", np, "num_proc")
    if min_np is not None:
        min_num_proc = _renamed("min_np", min_np, "min_num_proc")
    if max_np is not None:
        max_num_proc = _renamed("max_np", max_np, "max_num_proc")
    if network_interface is not None:
        network_interfaces = _renamed("network_interface", network_interface, "network_interfaces")
    if num_proc < 1:
        raise ValueError(f"num_proc is {num_proc}, but a job needs at least 1 process")
    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile both say where to run: give one of them")
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi exclude each other: give one of them, or neither")
    _refuse_elastic(
        num_proc,
        min_num_proc=min_num_proc,
        max_num_proc=max_num_proc,
        slots=slots,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        host_discovery_script=host_discovery_script,
    )
    if _call.is_unpacking():
        raise RuntimeError(
            "horovod.run was called by a module that a rank of horovod.run imports: "
            "put the call below `if __name__ == '__main__':`, or into a function"
        )
    if isinstance(network_interfaces, str):
        network_interfaces = [network_interfaces]
    if hosts is None and hostfile is None:
        hostfile = cluster_hostfile()
    options = spell(
        num_proc=num_proc,
        hosts=hosts,
        hostfile=hostfile,
        start_timeout=start_timeout,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        disable_cache=bool(disable_cache),
        output_filename=output_filename,
        verbose=bool(verbose),
        quiet=verbose is not None and not verbose,
        gloo=bool(use_gloo),
        mpi=bool(use_mpi),
        mpi_args=mpi_args,
        network_interfaces=",".join(network_interfaces) if network_interfaces else None,
    )
    with job(_call.pack(func, args, kwargs or {}), executable) as (words, results):
        return _results(launch(["run", *options, *words]), num_proc, results)


@contextmanager
def job(payload: bytes, executable: str | os.PathLike[str] | None = None) -> Iterator[tuple[list[str], Path]]:
    """Give the last words of a command line whose ranks make a packed call, and the folder for what they leave."""
    with tempfile.TemporaryDirectory(prefix="ronde-run-") as folder:
        call, results = Path(folder, "call"), Path(folder, "results")
        call.touch(mode=0o600)
        call.write_bytes(payload)
        results.mkdir(mode=0o700)
        task = spell(task_payload=call, task_results=results)
        yield [*task, "--", os.fspath(executable or sys.executable), "-m", "ronde._task"], results


def _renamed(old: str, value: Any, new: str) -> Any:
    warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=3)
    return value


def _refuse_elastic(num_proc: int, **arguments: Any) -> None:
    """Raise if an argument asks for a job whose size may change; one that says it may not is fine."""
    fixed = {"min_num_proc", "max_num_proc"}
    given = [
        name for name, value in arguments.items() if value is not None and not (name in fixed and value == num_proc)
    ]
    if given:
        raise NotImplementedError(
            f"{', '.join(given)}: elastic jobs, whose number of processes changes, are not there yet; "
            "num_proc alone gives a job of that many processes"
        )


def spell(**values: Any) -> list[str]:
    """Spell options for a command line: ``True`` is a switch, ``None`` and ``False`` leave the option out."""
    spelled = []
    for name, value in values.items():
        if value is not None and value is not False:
            flag = f"--{name.replace('_', '-')}"
            spelled.append(flag if value is True else f"{flag}={value}")
    return spelled


@dataclass(frozen=True)
class Failure:
    """Why a job failed."""

    rank: int | None
    """Who failed first, if it was a rank and is known."""
    said: str
    """The launcher's words."""
    raised: _call.Raised | None = None
    """What that rank raised, if it had the time to leave it."""
    started: bool = True
    """Whether there was a job at all."""


def values(status: int, num_proc: int, folder: Path) -> list[Any] | Failure:
    """Return what every rank returned, or what went wrong."""
    files = {rank: folder / f"rank.{rank}" for rank in range(num_proc)}
    outcomes = {rank: _call.read(file.read_bytes()) for rank, file in files.items() if file.is_file()}
    if status != 0:
        raised = {rank: outcome for rank, outcome in outcomes.items() if isinstance(outcome, _call.Raised)}
        return _failure(status, raised, folder / "failure")
    found = []
    for rank in range(num_proc):
        outcome = outcomes.get(rank)
        if not isinstance(outcome, _call.Returned):
            raise RuntimeError(f"rank {rank} has ended without a result: did the function call os._exit, or exec?")
        found.append(outcome.value(rank))
    return found


def _failure(status: int, raised: Mapping[int, _call.Raised], file: Path) -> Failure:
    """Find what made a job fail, in what the ranks left and what the launcher says."""
    first, said = None, f"The launcher has ended with status {status}."
    if file.is_file():
        number, _, said = file.read_text(encoding="utf-8").partition("\n")
        if not number:
            return Failure(None, said, started=False)
        first = int(number)
    if not raised or (first is not None and first not in raised):
        # It was killed, or ended in a way that left nothing; what the others raised is a consequence.
        return Failure(first, said)
    # Who raised because another rank was lost may end before that one does, but has nothing to say.
    rank, outcome = min(raised.items(), key=lambda item: (item[1].follows, item[0] != first, item[0]))
    return Failure(rank, said, outcome)


def _results(status: int, num_proc: int, folder: Path) -> list[Any]:
    """Return what every rank returned, or raise what went wrong."""
    found = values(status, num_proc, folder)
    if not isinstance(found, Failure):
        return found
    if found.raised is not None:
        text = f"{_FAILED}\nRank {found.rank} on {found.raised.host} failed first:\n\n{found.raised.traceback}"
        raise RuntimeError(text.rstrip()) from found.raised.exception()
    problem = _FAILED if found.started else "Horovod could not run the job."
    raise RuntimeError(f"{problem}\n{found.said}")
