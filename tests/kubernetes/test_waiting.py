"""RondeJobs that wait: to be resumed, for their turn, for a better placement, for a queue system. Needs root."""

from __future__ import annotations

import json
from typing import Any

from jobs import ENDS_IN_THE_SECOND_ATTEMPT, await_all_free, await_job, await_left, remove_job, ronde_job, status
from laptop import Laptop
from pods import FOREVER, await_phase, pods, remove, shell_pod
from testbed import Cluster, wait_for

# What a queue system puts on pods, and takes off those that it admits.
GATE = "queue.example.com/admission"
QUEUE = "kueue.x-k8s.io/queue-name"


def change(cluster: Cluster, name: str, **spec: Any) -> None:
    """Change what is asked for in a job."""
    cluster.kubectl("patch", "rondejob", name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")


def take(cluster: Cluster, name: str, gpus: int, node: str) -> None:
    """Have somebody else's pod hold GPUs."""
    cluster.apply(shell_pod(name, FOREVER, gpus=gpus, node=node))
    await_phase(cluster, name, "Running")


def test_a_running_job_that_is_suspended_gives_its_gpus_back_and_runs_again_when_it_is_resumed(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    cluster.apply(ronde_job("paused", 6, ENDS_IN_THE_SECOND_ATTEMPT))
    await_job(cluster, "paused", "Running")
    change(cluster, "paused", suspend=True)
    rests = await_job(cluster, "paused", "Suspended", "Suspended")
    assert "nodes" not in rests, "it has none"
    await_all_free(cluster)
    wait_for("its pods to be gone", lambda: not pods(cluster))
    # It is not the job that has failed.
    assert status(cluster, "paused")["failures"] == 0
    change(cluster, "paused", suspend=False)
    assert await_job(cluster, "paused", "Succeeded")["nodes"] == "node-1: 5, node-3: 1"
    remove_job(cluster, "paused")


def test_a_later_job_of_higher_priority_is_before_an_earlier_one(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    take(cluster, "theirs", 5, "node-1")
    cluster.apply(ronde_job("early", 6, "true"))
    await_job(cluster, "early", "Pending", "NotEnoughGpus")
    cluster.apply(ronde_job("urgent", 6, f"exec {FOREVER}", priority=10))
    await_job(cluster, "urgent", "Pending", "NotEnoughGpus")
    remove(cluster, "theirs")
    await_job(cluster, "urgent", "Running")
    wait_for(
        lambda: f"the early one to wait for it: {status(cluster, 'early')}",
        lambda: "node-1 is full (job urgent" in status(cluster, "early")["message"],
    )
    assert status(cluster, "early")["phase"] == "Pending"
    cluster.kubectl("delete", "rondejob", "urgent")
    await_job(cluster, "early", "Succeeded")
    remove_job(cluster, "early")


def test_a_job_waits_for_fewer_nodes_until_they_are_free_or_its_time_is_over(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    take(cluster, "theirs", 5, "node-1")
    take(cluster, "passing", 1, "node-2")
    cluster.apply(ronde_job("patient", 3, f"exec {FOREVER}", waitForBetterSeconds=600))
    waits = await_job(cluster, "patient", "Pending", "WaitsForBetter")
    assert waits["message"] == "2 nodes are possible now, and 1 would do: waits for fewer"
    assert cluster.free_gpus() == {"node-1": 0, "node-2": 2, "node-3": 2}, "who waits has nothing"
    remove(cluster, "passing")
    assert await_job(cluster, "patient", "Running")["nodes"] == "node-2: 3"
    remove_job_beside(cluster, "patient", "theirs")

    take(cluster, "passing", 1, "node-2")
    cluster.apply(ronde_job("hasty", 3, "true", waitForBetterSeconds=5))
    await_job(cluster, "hasty", "Pending", "WaitsForBetter")
    assert await_job(cluster, "hasty", "Succeeded")["nodes"] == "node-2: 2, node-3: 1"
    remove_job_beside(cluster, "hasty", "theirs", "passing")
    remove(cluster, "theirs", "passing")


def remove_job_beside(cluster: Cluster, name: str, *others: str) -> None:
    """Delete a job, and wait until only the pods of others are left."""
    cluster.kubectl("delete", "rondejob", name)
    await_left(cluster, *(f"pods/{other}" for other in others))


def gates(cluster: Cluster) -> list[list[str]]:
    """Return what keeps the scheduler from each pod."""
    found = (pod["spec"].get("schedulingGates", []) for pod in pods(cluster).values())
    return [[gate["name"] for gate in of_pod] for of_pod in found]


def test_gates_of_a_queue_system_stay_until_it_takes_them_off_and_so_does_its_label(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    template = {"spec": {"schedulingGates": [{"name": GATE}]}}
    cluster.apply(ronde_job("admitted", 6, "true", template=template, queue="team-a"))
    held = await_job(cluster, "admitted", "Placing", "HeldBack")
    assert f"is held back by {GATE}" in held["message"]
    # Ours is taken off all the same, and nobody else's.
    wait_for(lambda: f"only the foreign gate: {gates(cluster)}", lambda: gates(cluster) == [[GATE], [GATE]])
    assert {pod["metadata"]["labels"][QUEUE] for pod in pods(cluster).values()} == {"team-a"}
    # What it was promised is not given to others meanwhile.
    cluster.apply(ronde_job("behind", 6, "true"))
    assert "job admitted" in await_job(cluster, "behind", "Pending", "NotEnoughGpus")["message"]
    assert status(cluster, "admitted")["reason"] == "HeldBack"
    admits = [{"op": "remove", "path": "/spec/schedulingGates"}]
    for name in pods(cluster):
        cluster.kubectl("patch", "pod", name, "--type=json", f"--patch={json.dumps(admits)}")
    await_job(cluster, "admitted", "Succeeded")
    await_job(cluster, "behind", "Succeeded")
    cluster.kubectl("delete", "rondejob", "behind")
    remove_job(cluster, "admitted")
