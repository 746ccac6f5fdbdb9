"""All parts of `bench/run kube`: which clusters they need, in which order tools take turns, and what is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from testbed import Cluster, ClusterError, Simulated

from harness.aims import RONDE, Aim
from harness.environment import SetupError, say
from harness.jobs import JobError
from harness.report import Report, Row

from . import aims, image, memory, queue, shares, start
from .managers import Manager, MpiOperator, Ronde, install

# Open MPI's ranks spin while they wait, which on a machine with fewer cores than ranks keeps the others from starting.
OPEN_MPI_COMMAND = ("-x", "OMPI_MCA_mpi_yield_when_idle=1", "python3", "/bench/first_mpi.py")
RONDE_COMMAND = ("python3", "/bench/first_ronde.py")
# Instead of 5 requests a second.
UNBOUND = (
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--controller-queue-rate-limit=1000",
    "--controller-queue-burst=2000",
)
# Figures by tool, for one line of the table.
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Effort:
    """How much is measured: turns on real nodes; jobs and simulated nodes of the queue, and of the manager's memory."""

    rounds: int
    queue: tuple[int, int]
    memory: tuple[int, int]

    def changed(self, rounds: int | None, jobs: int | None, nodes: int | None) -> Effort:
        """Return it with what the command line says."""
        queue, memory = ((jobs or usual[0], nodes or usual[1]) for usual in (self.queue, self.memory))
        if any(nodes_ < jobs_ for jobs_, nodes_ in (queue, memory)):
            raise SetupError("every job takes nodes of its own: --nodes must be no less than --jobs")
        return Effort(rounds or self.rounds, queue, memory)


FULL = Effort(rounds=3, queue=(100, 500), memory=(1000, 5000))
QUICK = Effort(rounds=1, queue=(8, 40), memory=(10, 50))


def measure(report: Report, programs: Path, parts: Sequence[str], effort: Effort) -> None:
    """Measure the parts with our programs in that folder, and add them to the report."""
    wanted: dict[str, Callable[[], None]] = {
        "start": lambda: _start(report, programs, effort.rounds),
        "shares": lambda: _shares(report, programs),
        "queue": lambda: _queue(report, programs, *effort.queue),
        "memory": lambda: _memory(report, programs, *effort.memory),
    }
    for part in parts or aims.PARTS:
        try:
            wanted[part]()
        except ClusterError as error:
            raise JobError(f"{part}: {error}") from error


def _start(report: Report, programs: Path, rounds: int) -> None:
    tools = [
        start.Tool(Ronde(programs, image.MANAGER), RONDE_COMMAND),
        start.Tool(Ronde(programs, image.MANAGER, aims.RONDE_INSIDE, image_has_ronde=True), RONDE_COMMAND),
        start.Tool(MpiOperator(aims.OPERATOR), OPEN_MPI_COMMAND),
        start.Tool(MpiOperator(aims.OPERATOR_WAITS, launcher="WaitForWorkersReady"), OPEN_MPI_COMMAND),
    ]
    with start.ground(image.images(), [tool.manager for tool in tools]) as ground:
        measured = {gpus: start.measure(ground, tools, gpus, rounds) for gpus in aims.START_GPUS}
    for gpus, starts in measured.items():
        report.details[f"{aims.START_NODES} x {gpus} GPUs, seconds"] = [
            {"tool": name, **vars(one)} for name, all_starts in starts.items() for one in all_starts
        ]
        for end, figure in ((aims.RUNNING, "running"), (aims.FIRST, "first_allreduce"), (aims.WHOLE, "succeeded")):
            figures = {name: 1e6 * median(getattr(one, figure) for one in all_) for name, all_ in starts.items()}
            _compare(report, [aim for aim in aims.start_aims(gpus) if aim.section.endswith(end)], figures)


def _shares(report: Report, programs: Path) -> None:
    manager = Ronde(programs, image.MANAGER)
    with start.ground(image.images(), [manager]) as ground:
        report.notes.append(shares.shown(ground, manager, RONDE_COMMAND))


def _queue(report: Report, programs: Path, jobs: int, nodes: int) -> None:
    managers: list[Manager] = [
        Ronde(programs),
        MpiOperator(aims.OPERATOR, launcher="WaitForWorkersReady"),
        MpiOperator(aims.OPERATOR_UNBOUND, UNBOUND, launcher="WaitForWorkersReady"),
    ]
    passed: dict[str, queue.Passage] = {}
    with Cluster(simulated=queue.simulated(nodes, managers), audit=True) as cluster:
        for manager in {manager.account: manager for manager in managers}.values():
            install(cluster, manager)
        for manager in managers:
            say(f"{jobs} jobs on {nodes} simulated nodes: {manager.name}")
            # Twice the nodes that there are.
            passed[manager.name] = queue.go_through(cluster, manager, jobs, 2 * nodes // jobs)
    report.details[f"{jobs} jobs on {nodes} nodes, requests"] = [
        {"tool": name, "own": one.requests.own, "everybody": one.requests.all} for name, one in passed.items()
    ]
    figures: list[tuple[str, Callable[[queue.Passage], float]]] = [
        ("until all have ended", lambda one: 1e6 * one.succeeded),
        ("until GPUs are free", lambda one: 1e6 * one.free),
        ("requests a job, manager", lambda one: one.requests.own.total() / jobs),
        ("requests a job, everybody", lambda one: one.requests.all.total() / jobs),
        ("manager's processor time", lambda one: 1e6 * one.used.processor_seconds),
        ("manager's peak memory", lambda one: one.used.peak_bytes),
    ]
    for end, figure in figures:
        wanted = [aim for aim in aims.queue_aims(jobs, nodes) if aim.section.endswith(end)]
        _compare(report, wanted, {name: figure(one) for name, one in passed.items()}, (jobs, nodes) == FULL.queue)


def _memory(report: Report, programs: Path, jobs: int, nodes: int) -> None:
    manager = Ronde(programs)
    with Cluster(simulated=Simulated(nodes, memory.GPUS)) as cluster:
        install(cluster, manager)
        used = memory.filled(cluster, manager, jobs, nodes // jobs)
    figures = {RONDE: used.peak_bytes, aims.LIMIT: aims.MEMORY_LIMIT}
    _compare(report, [aims.memory_aim(jobs, nodes)], figures, (jobs, nodes) == FULL.memory)


def _compare(report: Report, wanted: Sequence[Aim], figures: Figures, has_aim: bool = True) -> None:
    """Add the rows; what was made smaller than the aims are for has no verdict."""
    for aim in wanted:
        report.rows.append(Row.judge(aim, 0, figures[aim.ours], figures[aim.theirs], has_aim))


def our_programs(ronde: Path) -> Path:
    """Return the folder with `ronde` and `ronde-kube`, which must lie beside each other."""
    if not ronde.with_name("ronde-kube").exists():
        raise SetupError(f"beside {ronde} there is no ronde-kube; leave --ronde out to use those of the wheel")
    return ronde.parent
