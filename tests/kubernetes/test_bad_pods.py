"""Ranks and pods that fail or are taken away: the job says which and why, or starts again. Needs root."""

from __future__ import annotations

import pytest
from jobs import ENDS_IN_THE_SECOND_ATTEMPT, await_job, remove_job, ronde_job
from laptop import Laptop
from pods import FOREVER, pod


@pytest.mark.parametrize(
    ("rank", "ending", "status", "pod", "how"),
    [
        (0, "exit 3", 3, "fails-chief", "exit status 3"),
        (4, "exit 5", 5, "fails-worker-0", "exit status 5"),
        (2, "kill -9 $$", 137, "fails-worker-0", "killed by signal 9"),
    ],
)
def test_the_rank_that_fails_first_is_named_and_its_status_is_the_commands(
    laptop: Laptop, rank: int, ending: str, status: int, pod: str, how: str
) -> None:
    command = laptop.start_run("fails", 6, f"[ $HOROVOD_RANK != {rank} ] || {ending}; exec {FOREVER}")
    assert command.end() == status, command
    assert f"rank {rank} on {pod} failed first: {how}" in command.output()
    said = f"error: fails-chief on node-3 ended with status {status}: rank {rank} on {pod} failed first: {how}"
    assert said in command.said()
    assert "6 GPUs free again" in command.said()


def test_a_rank_that_runs_out_of_memory_is_named_with_the_reason(laptop: Laptop) -> None:
    script = f"[ $HOROVOD_RANK = 0 ] && exec {FOREVER}; exec python -c 'x = bytearray(10**9); print(len(x))'"
    command = laptop.start_run("hungry", 2, script, "--policy", "spread", "--memory-per-gpu", "200Mi")
    assert command.end() != 0
    how = "rank 1 on hungry-worker-0 failed first: killed by signal 9 (out of memory on hungry-worker-0)"
    assert how in command.output()
    # Told by the chief, or by the cluster if that says it first.
    assert how in command.said() or "hungry-worker-0 on node-2 ran out of memory" in command.said()
    assert "2 GPUs free again" in command.said()


def test_an_evicted_worker_ends_the_job_with_the_reason(laptop: Laptop) -> None:
    command = laptop.start_run("evicted", 6, f"exec {FOREVER}")
    command.await_said("✓ started")
    evict(laptop, "evicted-worker-0")
    assert command.end() == 1, command
    assert "error: evicted-worker-0 was taken off node-1 (EvictionByEvictionAPI)" in command.said()
    assert "6 GPUs free again" in command.said()


@pytest.mark.parametrize("who", ["chief", "worker-0"])
def test_a_job_with_retries_starts_again_after_an_eviction(laptop: Laptop, who: str) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    cluster.apply(ronde_job("moved", 4, ENDS_IN_THE_SECOND_ATTEMPT, retries=1, maxGpusPerNode=2))
    await_job(cluster, "moved", "Running")
    node = pod(cluster, f"moved-{who}")["spec"]["nodeName"]
    evict(laptop, f"moved-{who}")
    waits = await_job(cluster, "moved", "Pending", "Retrying")
    assert f"attempt 1 of 2 failed: moved-{who} was taken off {node} (EvictionByEvictionAPI)" in waits["message"]
    ended = await_job(cluster, "moved", "Succeeded")
    # Whoever was taken off a node once may be so again.
    assert node not in ended["nodes"]
    remove_job(cluster, "moved")


@pytest.mark.parametrize("who", ["chief", "worker-0"])
def test_a_deleted_pod_ends_the_job_with_the_reason(laptop: Laptop, who: str) -> None:
    command = laptop.start_run("robbed", 6, f"exec {FOREVER}")
    command.await_said("✓ started")
    laptop.cluster.kubectl("delete", "pod", f"robbed-{who}", "--wait=false")
    # Who is told to end while it has time to says so itself; whoever is gone at once was deleted.
    code = command.end()
    assert code == (143 if who == "chief" else 1), command
    assert f"robbed-{who}" in command.said()


def evict(laptop: Laptop, name: str) -> None:
    """Have a pod go in the way in which nodes are emptied."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    laptop.cluster.control_plane.api.create(f"/api/v1/namespaces/default/pods/{name}/eviction", eviction)
