"""A queue of jobs on simulated nodes: how long until all have ended, and how many requests each has cost.

All jobs are submitted at once, and ask for twice the GPUs that there are: half of them wait for the others' GPUs. A job
trains for a second, which is its chief's; then its pods are to go. Of the operator, which has no queue, all jobs' pods
wait for the scheduler; its launcher is made when all workers run, so that the second it trains begins there as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from testbed import Cluster, Simulated, wait_for

from harness.environment import say
from harness.jobs import JobError

from .managers import SUCCEEDED, Manager, Used, Work, clear, running
from .requests import Requests, requests_since
from .watch import DELETED, Watch, pod_states

# How long a job trains.
SECONDS = 1.0
GPUS = 8
# A manager that has made no request for so many seconds is done.
QUIET = 3.0


@dataclass(frozen=True)
class Passage:
    """How a queue of jobs went through."""

    jobs: int
    # From the first submission until the last job has succeeded, and until no pod has GPUs any more; in seconds.
    succeeded: float
    free: float
    requests: Requests
    used: Used


def simulated(nodes: int, managers: list[Manager]) -> Simulated:
    """Return nodes on which the chiefs of these managers train for a while."""
    return Simulated(nodes, GPUS, dict(manager.chief for manager in managers), SECONDS)


def go_through(cluster: Cluster, manager: Manager, jobs: int, nodes: int) -> Passage:
    """Let jobs with so many nodes each go through a manager that is installed, and take them away again."""
    api, log = cluster.control_plane.api, cluster.control_plane.audit_log
    assert log is not None
    user = f"system:serviceaccount:{manager.namespace}:{manager.account}"
    pods = Watch(api, "/api/v1/namespaces/default/pods", pod_states)
    ends = Watch(api, manager.jobs, manager.states)
    with running(cluster, manager) as process:
        # Its first job finds the manager awake, and does not count.
        api.create(manager.jobs, manager.job(Work("first", nodes, GPUS)))
        ends.wait("a first job", lambda seen: SUCCEEDED in seen.get("first", {}), 120, process.check)
        clear(cluster, manager)
        before, offset, begun = Used.by(process), log.stat().st_size, time.perf_counter()
        names = [f"job-{number:03}" for number in range(jobs)]
        api.create_all(manager.jobs, [manager.job(Work(name, nodes, GPUS)) for name in names])
        say(f"{manager.name}: {jobs} jobs submitted in {time.perf_counter() - begun:.1f} s")
        ends.wait(
            f"{jobs} jobs of {manager.name}",
            lambda seen: all(SUCCEEDED in seen.get(name, {}) for name in names),
            1800,
            process.check,
        )
        succeeded = max(ends.all()[name][SUCCEEDED] for name in names) - begun
        wait_for("free GPUs", lambda: sum(cluster.free_gpus().values()) == _gpus(cluster), 300, process.check)
        gone = [states for name in names for states in manager.trains(pods.seen(manager.job_label, name)).values()]
        if len(gone) != jobs * nodes:
            raise JobError(f"{manager.name} has made {len(gone)} pods for {jobs} jobs of {nodes} nodes")
        free = max(states.get("Succeeded", states.get(DELETED, 0.0)) for states in gone) - begun
        requests = _settled(lambda: requests_since(log, offset, user))
        after = Used.by(process)
        used = Used(after.processor_seconds - before.processor_seconds, after.peak_bytes)
        passage = Passage(jobs, succeeded, free, requests, used)
        clear(cluster, manager)
    return passage


def _gpus(cluster: Cluster) -> int:
    nodes = cluster.get("/api/v1/nodes")["items"]
    return sum(int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in nodes)


def _settled(count: Callable[[], Requests]) -> Requests:
    """Count until nothing more comes: some requests follow a job's end."""
    made = count()
    while True:
        # Silence has no event that could be awaited.
        time.sleep(QUIET)
        more = count()
        if more.own == made.own:
            return more
        made = more
