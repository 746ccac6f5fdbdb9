"""Who is before whom where the first of the queue is never overtaken (`--hold-after 0`). Needs root."""

from __future__ import annotations

from jobs import await_job, await_left, ronde_job
from laptop import MANAGER_ACCOUNT, Laptop
from pods import FOREVER, await_phase, pods, remove, shell_pod
from testbed import Cluster


def start_strict_controller(laptop: Laptop) -> None:
    """Start a controller that keeps what becomes free for the first of the queue at once."""
    account = laptop.cluster.account_kubeconfig(*MANAGER_ACCOUNT)
    words = ["--listen", "127.0.0.1:0", "--hold-after", 0]
    laptop.start("manager", *words, kubeconfig=account, POD_NAME="first")


def make_choosy_job(cluster: Cluster) -> None:
    """Have a job wait for three GPUs of one node while two nodes have two each that are free."""
    for name, gpus, node in (("theirs", 5, "node-1"), ("passing", 1, "node-2")):
        cluster.apply(shell_pod(name, FOREVER, gpus=gpus, node=node))
        await_phase(cluster, name, "Running")
    cluster.apply(ronde_job("choosy", 3, "true", waitForBetterSeconds=600))
    await_job(cluster, "choosy", "Pending", "WaitsForBetter")
    assert set(pods(cluster)) == {"theirs", "passing"}, "who waits has nothing"


def test_a_job_that_waits_for_fewer_nodes_holds_up_nobody(laptop: Laptop) -> None:
    cluster = laptop.cluster
    start_strict_controller(laptop)
    make_choosy_job(cluster)
    # The other could start if it wanted, so nothing has to be kept for it.
    cluster.apply(ronde_job("behind", 2, "true"))
    await_job(cluster, "behind", "Succeeded")
    await_job(cluster, "choosy", "Pending", "WaitsForBetter")
    remove(cluster, "passing")
    assert await_job(cluster, "choosy", "Succeeded")["nodes"] == "node-2: 3"
    remove(cluster, "theirs")
    cluster.kubectl("delete", "rondejob", "choosy", "behind")
    await_left(cluster)


def test_a_job_that_waits_for_fewer_nodes_is_held_up_like_any_other(laptop: Laptop) -> None:
    cluster = laptop.cluster
    start_strict_controller(laptop)
    make_choosy_job(cluster)
    cluster.apply(ronde_job("urgent", 5, "true", priority=10))
    await_job(cluster, "urgent", "Pending", "NotEnoughGpus")
    assert "waits behind default/urgent" in await_job(cluster, "choosy", "Pending", "Queued")["message"]
    # What becomes free would do for both, and is for the one that is before it.
    remove(cluster, "passing")
    assert await_job(cluster, "urgent", "Succeeded")["nodes"] == "node-2: 3, node-3: 2"
    assert await_job(cluster, "choosy", "Succeeded")["nodes"] == "node-2: 3"
    remove(cluster, "theirs")
    cluster.kubectl("delete", "rondejob", "choosy", "urgent")
    await_left(cluster)
