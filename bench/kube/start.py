"""One job on real nodes: from its submission until all workers run, and until the last rank has its first sum.

Kubelets, containers and the network between pods are real, the GPUs are pretended. Both managers run meanwhile; jobs
take turns. The first figure is seen by a watch from outside; the second is the time that the node's container runtime
wrote beside the line that the last rank printed, in the log of the chief or launcher. All of it has one clock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from testbed import Cluster
from testbed.namespaces import Process

from harness.environment import say
from harness.jobs import JobError

from .aims import START_GPUS, START_NODES
from .image import TRAINING
from .managers import SUCCEEDED, Manager, Work, clear, install, running
from .watch import Watch, pod_states

# What a rank prints, behind the time that the runtime wrote and whatever the launcher puts before a line.
WITNESS = re.compile(r"^(?P<time>\S+) .*first allreduce: rank (?P<rank>\d+) of (?P<size>\d+), sum (?P<sum>\d+)$", re.M)
DEADLINE = 300.0


@dataclass(frozen=True)
class Tool:
    """A manager with the program that its ranks run."""

    manager: Manager
    command: Sequence[str]


@dataclass(frozen=True)
class Start:
    """One job, in seconds from its submission."""

    running: float
    first_allreduce: float
    succeeded: float


@dataclass(frozen=True)
class Ground:
    """A cluster of real nodes, and the managers that run on it."""

    cluster: Cluster
    managers: Sequence[Process]

    def check(self) -> None:
        """Raise if a manager has ended."""
        for manager in self.managers:
            manager.check()


@contextmanager
def ground(images: Path, managers: Sequence[Manager]) -> Iterator[Ground]:
    """Give a cluster of real nodes on which these managers run."""
    started: list[Process] = []
    with Cluster([max(START_GPUS)] * START_NODES, images=[images]) as cluster, ExitStack() as stack:
        for manager in {manager.account: manager for manager in managers}.values():
            install(cluster, manager)
            started.append(stack.enter_context(running(cluster, manager)))
        yield Ground(cluster, started)


def measure(ground: Ground, tools: Sequence[Tool], gpus: int, rounds: int) -> dict[str, list[Start]]:
    """Let all tools take turns with so many GPUs of each node, and return what each has done.

    A round before the first does not count.
    """
    starts: dict[str, list[Start]] = {tool.manager.name: [] for tool in tools}
    for turn in range(rounds + 1):
        for number, tool in enumerate(tools):
            # No name comes again: DNS servers remember what the last one of that name had, or had not, for 30 s.
            name = f"first-{number}-{gpus}-{turn}"
            say(f"{START_NODES} x {gpus} GPUs, round {turn} of {rounds}: {tool.manager.name}")
            start = _start(ground, tool, Work(name, START_NODES, gpus, TRAINING, tool.command))
            if turn > 0:
                starts[tool.manager.name].append(start)
    return starts


def _start(ground: Ground, tool: Tool, work: Work) -> Start:
    manager, cluster, name = tool.manager, ground.cluster, work.name
    api = cluster.control_plane.api
    pods = Watch(api, "/api/v1/namespaces/default/pods", pod_states)
    jobs = Watch(api, manager.jobs, manager.states)
    clock, begun = time.time(), time.perf_counter()
    api.create(manager.jobs, manager.job(work))
    jobs.wait(f"{name} of {manager.name}", lambda seen: SUCCEEDED in seen.get(name, {}), DEADLINE, ground.check)
    workers = manager.trains(pods.seen(manager.job_label, name))
    if len(workers) != work.nodes:
        raise JobError(f"{manager.name}: {name} did not run on {work.nodes} nodes: {workers}")
    succeeded = jobs.all()[name][SUCCEEDED]
    lines = chief_log(cluster, manager)
    start = Start(
        # Where a job ends at once, a pod may be gone before its kubelet has said that it runs.
        running=max(states.get("Running", succeeded) for states in workers.values()) - begun,
        first_allreduce=last_sum(lines, work.nodes * work.gpus) - clock,
        succeeded=succeeded - begun,
    )
    clear(cluster, manager)
    return start


def chief_log(cluster: Cluster, manager: Manager) -> str:
    """Return what the chief or launcher of the only job has printed, with times; failed ones do not count."""
    label, value = manager.chief
    pods = cluster.get(f"/api/v1/namespaces/default/pods?labelSelector={label.replace('/', '%2F')}%3D{value}")["items"]
    good = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] != "Failed"]
    if len(good) != 1:
        raise JobError(f"{manager.name}: {len(good)} of {len(pods)} chiefs have succeeded")
    return cluster.kubectl("logs", good[0], "--timestamps")


def last_sum(log: str, ranks: int) -> float:
    """Return when the last rank's line was printed, in seconds of the clock; its sum must be right."""
    found = list(WITNESS.finditer(log))
    wrong = [line[0] for line in found if int(line["sum"]) != ranks * (ranks + 1) // 2]
    if wrong:
        raise JobError(f"a wrong sum: {wrong[0]}")
    if {int(line["rank"]) for line in found} != set(range(ranks)):
        raise JobError(f"{len(found)} of {ranks} ranks said that they were there: {log[-2000:]}")
    # The kernel's clock has nanoseconds, which Python's dates have not.
    times = (re.sub(r"(\.\d{6})\d*", r"\1", line["time"]).replace("Z", "+00:00") for line in found)
    return max(datetime.fromisoformat(moment).timestamp() for moment in times)
