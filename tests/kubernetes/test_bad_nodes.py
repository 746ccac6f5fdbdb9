"""Nodes that fall silent or go: jobs fail or start again without them, and nothing is deleted by force. Needs root.

Who is not heard of may still run. So its pods stay in the cluster's books, and their GPUs count as taken, until their
node says that they have ended or is gone for good; its ranks notice by themselves that they are alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import UNTIL_ENOUGH, await_job, await_left, enough, remove_job, ronde_job
from laptop import Laptop
from pods import FOREVER, pod
from testbed import Cluster, wait_for

# Longer than a node may be silent before it counts as lost, and than its ranks wait for a sign of life.
PATIENCE = 120


def ranks(number: int) -> list[int]:
    """Return the processes of this machine, those in containers included, that sleep for so many seconds."""
    words = f"sleep\0{number}\0".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if process.read_bytes() == words:
                found.append(int(process.parent.name))
        except OSError:
            # It has just ended.
            continue
    return found


def forever(number: int) -> str:
    """Return what a rank runs that is known by a number, and does not end by itself."""
    return f"exec sleep {number}"  # sleep: is there until it is killed


def lasting(number: int) -> str:
    """Return what a rank runs that ends by itself only in the second attempt."""
    return f"case $POD_NAME in *-r1) exit 0;; esac; {forever(number)}"


def deletion(cluster: Cluster, name: str) -> int:
    """Return with how many seconds of grace a pod is being deleted; it must still be there."""
    about = pod(cluster, name)["metadata"]
    assert "deletionTimestamp" in about, about
    return int(about["deletionGracePeriodSeconds"])


def test_a_job_starts_again_without_a_node_whose_kubelet_is_frozen(laptop: Laptop) -> None:
    cluster, number = laptop.cluster, 91357
    node = cluster.nodes["node-3"]
    laptop.start_controller()
    cluster.apply(ronde_job("frozen", 6, lasting(number), retries=1))
    await_job(cluster, "frozen", "Running")
    wait_for("all ranks", lambda: len(ranks(number)) == 6)
    node.freeze_kubelet()
    try:
        ended = await_job(cluster, "frozen", "Succeeded", seconds=PATIENCE)
        assert ended["nodes"] == "node-1: 5, node-2: 1"
        # The chief was there. Its node has not said that it has ended, so it is not gone, and holds its GPU.
        assert deletion(cluster, "frozen-chief") > 0
        assert cluster.free_gpus()["node-3"] == 1
        # Its ranks have ended all the same: those of the other node were told to, and it knows that it lost them.
        wait_for("the end of all ranks", lambda: not ranks(number))
    finally:
        node.thaw_kubelet()
        node.await_ready()
    remove_job(cluster, "frozen")


def test_ranks_on_a_node_that_is_cut_off_end_by_themselves(laptop: Laptop) -> None:
    cluster, number = laptop.cluster, 91358
    node = cluster.nodes["node-1"]
    command = laptop.start_run("alone", 6, forever(number))
    command.await_said("✓ started")
    wait_for("all ranks", lambda: len(ranks(number)) == 6)
    node.set_link("down")
    try:
        assert command.end(PATIENCE) == 1, command
        # The chief notices first, by the silence of its worker; or the cluster does.
        assert "lost alone-worker-0" in command.output() or "node-1, where alone-worker-0 runs" in command.said()
        assert deletion(cluster, "alone-worker-0") > 0
        assert cluster.free_gpus()["node-1"] == 0, "nobody knows yet that it has ended"
        wait_for("the end of all ranks", lambda: not ranks(number), PATIENCE)
    finally:
        node.set_link("up")
    await_left(cluster, seconds=PATIENCE)


def test_a_stopped_kubelet_fails_the_job_with_the_reason(laptop: Laptop) -> None:
    cluster = laptop.cluster
    node = cluster.nodes["node-1"]
    command = laptop.start_run("silent", 6, f"exec {FOREVER}")
    command.await_said("✓ started")
    node.kill_kubelet()
    try:
        assert command.end(PATIENCE) == 1, command
        assert "error: node-1, where silent-worker-0 runs, does not answer any more" in command.said()
        assert deletion(cluster, "silent-worker-0") > 0
    finally:
        node.start_kubelet()
        node.await_ready()
    await_left(cluster, seconds=PATIENCE)


def test_kubelets_that_are_started_anew_cost_no_job(laptop: Laptop) -> None:
    command = laptop.start_run("upgraded", 6, f"echo begun; {UNTIL_ENOUGH}; echo done")
    command.await_said("✓ started")
    for name in ("node-1", "node-3"):
        node = laptop.cluster.nodes[name]
        node.kill_kubelet()
        node.start_kubelet()
        node.await_ready()
    enough(laptop.cluster, "upgraded")
    assert command.end(PATIENCE) == 0, command
    # The chief's output came through one of them. All of it is shown, and once.
    assert (command.output().count("begun"), command.output().count("done")) == (6, 6), command


@pytest.mark.parametrize(
    ("name", "elsewhere"),
    [("node-3", "node-1: 2, node-2: 2"), ("node-2", "node-1: 2, node-3: 2")],
    ids=["chief", "worker"],
)
def test_a_job_whose_pod_a_kubelet_refuses_is_planned_anew_elsewhere(laptop: Laptop, name: str, elsewhere: str) -> None:
    node = laptop.cluster.nodes[name]
    # Pods get their places while there is no kubelet. The next one has no GPUs until they are offered to it, so that it
    # refuses what it finds, as one does whose GPUs were taken between place and start.
    node.freeze_gpus()
    node.kill_kubelet()
    try:
        try:
            command = laptop.start_run("refused", 4, "true", "--max-gpus-per-node", 2)
            command.await_said("✓ scheduled")
        finally:
            node.start_kubelet()
        assert command.end() == 0, command
    finally:
        node.thaw_gpus()
        node.await_ready()
    assert "job refused · 4 GPUs · node-2: 2, node-3: 2" in command.said()
    assert f"job refused · 4 GPUs · {elsewhere}" in command.said()
    assert "4 GPUs free again" in command.said()


def test_a_deleted_node_is_left_out_of_the_next_attempt(laptop: Laptop) -> None:
    cluster = laptop.cluster
    # More than any other has, so it is taken.
    node = cluster.add_node(6)
    laptop.start_controller()
    cluster.apply(ronde_job("homeless", "4..6", lasting(91359), retries=1))
    assert await_job(cluster, "homeless", "Running")["nodes"] == f"{node.name}: 6"
    cluster.remove_node(node.name)
    waits = await_job(cluster, "homeless", "Pending", seconds=PATIENCE)
    assert node.name in waits["message"] or "homeless-chief was deleted" in waits["message"]
    ended = await_job(cluster, "homeless", "Succeeded", seconds=PATIENCE)
    assert node.name not in ended["nodes"]
    # Nobody is there to say that the pod has ended: the cluster waits a while before it takes it away.
    remove_job(cluster, "homeless", seconds=PATIENCE)
