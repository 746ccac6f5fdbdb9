"""From the command to the first allreduce: jobs with one rank a host, on test hosts reached by ssh.

The clock starts with the launcher's process and stops when the line that the last rank prints after its allreduce has
come out of the launcher; a second figure is when the launcher has ended. Tools take turns. The host that launches is
one of the job's, as on a cluster without a login node.

A *first start* finds nothing on the hosts: ours has to send its binary and package, upstream has to test ssh and
interfaces again, which it otherwise remembers for an hour. Open MPI has nothing to send, since somebody must have
installed it everywhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.aims import (
    HOROVOD,
    HOROVOD_FIRST,
    OPEN_MPI_C,
    OPEN_MPI_PYTHON,
    RONDE,
    RONDE_FIRST,
    RONDE_PYTHON,
    RONDE_TORCH,
    RONDE_TORCH_FIRST,
    SSH_ALONE,
    WHOLE_JOB,
    start_aims,
)
from harness.environment import BENCH, ROOT, OurBinaries, SetupError, UpstreamHorovod, say
from harness.figures import Figures, one_launch
from harness.jobs import DEADLINE_SECONDS, LAST_WORDS, JobError
from harness.launchers import RANKS, Installed, clean, horovodrun, install, mpirun, ronde_run
from harness.report import Report

sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from hosts import HostsError
from sshd import HOME, SshHosts

SIZE = 4
# What ranks print: those of bench/launch with the sum, the Rust probe, which checks sums itself, as JSON.
WITNESS = re.compile(
    r'first allreduce: rank (?P<rank>\d+) of \d+, sum (?P<sum>\d+)|"work":"allreduce".*?"rank":(?P<probe>\d+)'
)
# On the host that launches. The others have nothing of ours but what the launcher sends.
OURS = Installed(Path("/opt/ronde"))
# Where upstream's package is on Python's path, as its users have it: it starts Python on other hosts by itself.
HOROVOD_PORT = 12346


@dataclass(frozen=True)
class Peers:
    """What is compared with us: Open MPI's C program, an interpreter for its Python script, and upstream Horovod."""

    python: Path
    openmpi: Path
    horovod: UpstreamHorovod | None


@dataclass(frozen=True)
class Tool:
    """One launcher with one program, and what to take from the hosts before it starts."""

    name: str
    command: Sequence[object]
    forget: Callable[[], None] | None = None


@dataclass(frozen=True)
class Start:
    """One start, in seconds from the command."""

    first_allreduce: float
    end: float


def starts(report: Report, ours: OurBinaries, peers: Peers, counts: Sequence[int], rounds: int) -> None:
    """Measure on so many hosts, for each count, and add it to the report."""
    for count in counts:
        with _ground(count, ours, peers) as hosts:
            first, end = _measure(hosts, ours, peers, rounds)
        report.keep(f"to the first allreduce, {count} hosts", first)
        report.keep(f"to the end of the job, {count} hosts", end)
        for aim in start_aims(count):
            report.compare(aim, end if aim.section.startswith(WHOLE_JOB) else first)


@contextmanager
def _ground(count: int, ours: OurBinaries, peers: Peers) -> Iterator[SshHosts]:
    """Make hosts on which all programs but ours are installed."""
    visible = [BENCH, Path(sys.base_prefix), ours.probe, peers.openmpi, peers.python.parent.parent]
    if peers.horovod is not None:
        visible += [peers.horovod.package, peers.horovod.python.parent.parent]
    try:
        with SshHosts(count, expose=visible) as hosts:
            install(ours, OURS, hosts.path(1, "/"))
            if peers.horovod is not None:
                for host in hosts.numbers():
                    hosts.serve(host, HOROVOD_PORT, rules=f"SetEnv PYTHONPATH={peers.horovod.package}")
            yield hosts
    except HostsError as error:
        raise SetupError(str(error)) from None


def _tools(hosts: SshHosts, ours: OurBinaries, peers: Peers) -> list[Tool]:
    """Return all tools, first starts before those that find everything in place."""
    names = [hosts.name(host) for host in hosts.numbers()]
    each_one = ",".join(f"{name}:1" for name in names)
    here = ["-np", hosts.count, "-H", each_one, "-p", hosts.port]
    packages = {"PYTHONPATH": OURS.packages}

    def forget() -> None:
        for host in hosts.numbers():
            for folder in (".cache/ronde", ".horovod"):
                shutil.rmtree(hosts.path(host, f"{HOME}/{folder}"), ignore_errors=True)

    def of_ours(*command: object) -> list[object]:
        return [*clean(HOME, packages), *ronde_run(OURS, here, command)]

    def of_open_mpi(*command: object) -> list[object]:
        there = ["-np", hosts.count, "--host", each_one, "--mca", "plm_rsh_args", f"-p {hosts.port}"]
        return [*clean(HOME), *mpirun(there, command)]

    script = of_ours(peers.python, RANKS / "first_ronde.py")
    probe = of_ours(ours.probe, "allreduce", "--via", "engine", "--seconds", 0, SIZE)
    tools = [
        Tool(RONDE_FIRST, script, forget),
        Tool(RONDE_PYTHON, script),
        Tool(OPEN_MPI_PYTHON, of_open_mpi(peers.python, RANKS / "first_mpi.py")),
        Tool(RONDE, probe),
        Tool(OPEN_MPI_C, of_open_mpi(peers.openmpi)),
        Tool(SSH_ALONE, _ssh_alone(hosts, names, peers.python)),
    ]
    if peers.horovod is not None:
        python, package = peers.horovod.python, peers.horovod.package
        theirs = ["-np", hosts.count, "-H", each_one, "-p", HOROVOD_PORT]
        train = [python, RANKS / "first_torch.py"]
        upstream = [*clean(HOME, {"PYTHONPATH": package}), *horovodrun(peers.horovod, theirs, train)]
        tools += [
            Tool(RONDE_TORCH_FIRST, of_ours(*train), forget),
            Tool(RONDE_TORCH, of_ours(*train)),
            Tool(HOROVOD_FIRST, upstream, forget),
            Tool(HOROVOD, upstream),
        ]
    return tools


def _ssh_alone(hosts: SshHosts, names: Sequence[str], python: Path) -> list[object]:
    """Return a command that starts Python on all hosts at once, by ssh where it must, and lets it say a rank's line."""
    total = hosts.count * (hosts.count + 1) // 2
    lines = [f"first allreduce: rank {rank} of {hosts.count}, sum {total}" for rank in range(hosts.count)]
    here = f"{python} -c 'print(\"{lines[0]}\")' &"
    others = [
        f'ssh -p {hosts.port} {name} "{python} -c \'print(\\"{line}\\")\'" &'
        for name, line in zip(names[1:], lines[1:])
    ]
    return [*clean(HOME), "sh", "-c", "\n".join([here, *others, "wait"])]


def _measure(hosts: SshHosts, ours: OurBinaries, peers: Peers, rounds: int) -> tuple[Figures, Figures]:
    first, end = Figures(), Figures()
    # The round before the first fills the machine's own caches, and does not count.
    for turn in range(rounds + 1):
        for tool in _tools(hosts, ours, peers):
            say(f"start on {hosts.count} hosts, round {turn} of {rounds}: {tool.name}")
            if tool.forget is not None:
                tool.forget()
            start = _start(hosts, tool)
            if turn > 0:
                first.add(tool.name, [one_launch(SIZE, start.first_allreduce)])
                end.add(tool.name, [one_launch(SIZE, start.end)])
    return first, end


def _start(hosts: SshHosts, tool: Tool) -> Start:
    """Start a job, see that all ranks have the right sum, and wait for its end."""
    with tempfile.TemporaryFile(mode="w+") as errors:
        begun = time.perf_counter()
        process = hosts.popen(1, tool.command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            first = watch(process.stdout, hosts.count) - begun
            status = process.wait(DEADLINE_SECONDS)
        except (WrongOutputError, subprocess.TimeoutExpired) as problem:
            raise JobError(f"{tool.name} on {hosts.count} hosts: {problem}{_last_words(errors)}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if status != 0:
            raise JobError(f"{tool.name} on {hosts.count} hosts: status {status}{_last_words(errors)}")
        return Start(first, time.perf_counter() - begun)


class WrongOutputError(Exception):
    """What a job printed is not what its ranks print."""


def watch(lines: Iterator[str], ranks: int) -> float:
    """Read to the end and return when the last rank's line came; its sum must be right."""
    seen: set[int] = set()
    last = 0.0
    for line in lines:
        found = WITNESS.search(line)
        if found is None:
            continue
        if found["sum"] is not None and int(found["sum"]) != ranks * (ranks + 1) // 2:
            raise WrongOutputError(f"a wrong sum: {line.strip()}")
        seen.add(int(found["rank"] or found["probe"]))
        last = time.perf_counter()
    if seen != set(range(ranks)):
        raise WrongOutputError(f"only ranks {sorted(seen)} of {ranks} said that they were there")
    return last


def _last_words(errors: tempfile._TemporaryFileWrapper[str]) -> str:
    errors.seek(0)
    said = errors.read().strip()[-LAST_WORDS:]
    return f": {said}" if said else ""
