"""What only one of the two can be asked for: six GPUs as five on one node and one on another, each node one pod.

An `MPIJob` has one template for all its workers, so all of them have the same number of GPUs: it can be asked for 2 x 3
or 6 x 1, but not for 5 + 1. Here such a job is submitted to our controller, runs, and is checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.jobs import JobError

from .image import TRAINING
from .managers import SUCCEEDED, Ronde, Work, clear
from .start import DEADLINE, Ground, chief_log, last_sum
from .watch import Watch

WANTED = [1, 5]


def shown(ground: Ground, manager: Ronde, command: Sequence[str]) -> str:
    """Run a job of 5 + 1 GPUs, check its pods and every rank's sum, and say so."""
    cluster = ground.cluster
    jobs = Watch(cluster.control_plane.api, manager.jobs, manager.states)
    job = manager.job(Work("uneven", 1, sum(WANTED), TRAINING, command))
    job["spec"]["maxGpusPerNode"] = max(WANTED)
    cluster.control_plane.api.create(manager.jobs, job)
    pods = f"/api/v1/namespaces/default/pods?labelSelector={manager.job_label.replace('/', '%2F')}%3Duneven"
    jobs.wait("the job of 5 + 1 GPUs", lambda seen: "running" in seen.get("uneven", {}), DEADLINE, ground.check)
    held: dict[str, int] = {}
    for pod in cluster.get(pods)["items"]:
        (container,) = pod["spec"]["containers"]
        held[pod["spec"]["nodeName"]] = int(container["resources"]["limits"]["nvidia.com/gpu"])
    jobs.wait("the job of 5 + 1 GPUs", lambda seen: SUCCEEDED in seen.get("uneven", {}), DEADLINE, ground.check)
    if sorted(held.values()) != WANTED:
        raise JobError(f"{sum(WANTED)} GPUs were asked for as {WANTED}, and came as {held}")
    last_sum(chief_log(cluster, manager), sum(WANTED))
    clear(cluster, manager)
    told = ", ".join(f"{node}: {gpus}" for node, gpus in sorted(held.items()))
    return f"6 GPUs as 5 + 1 ({told}): all 6 ranks had the right sum. Workers of an MPIJob all have the same number"
