"""The manager's memory on a large cluster: thousands of simulated nodes, full of jobs that all run at once."""

from __future__ import annotations

import time

from testbed import Cluster

from harness.environment import say

from .managers import Manager, Used, Work, running
from .watch import Watch, pod_states

GPUS = 8


def filled(cluster: Cluster, manager: Manager, jobs: int, nodes: int) -> Used:
    """Let jobs with so many nodes each run, and return what the manager has used when all of their pods run."""
    api = cluster.control_plane.api
    pods = Watch(api, "/api/v1/namespaces/default/pods", pod_states)
    with running(cluster, manager) as process:
        begun = time.perf_counter()
        works = (Work(f"job-{number:04}", nodes, GPUS) for number in range(jobs))
        api.create_all(manager.jobs, map(manager.job, works))
        pods.wait(
            f"{jobs * nodes} pods to run",
            lambda seen: sum("Running" in states for states in seen.values()) >= jobs * nodes,
            3600,
            process.check,
        )
        say(f"{manager.name}: {jobs} jobs run after {time.perf_counter() - begun:.0f} s")
        return Used.by(process)
