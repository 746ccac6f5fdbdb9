"""What is counted besides GPUs when a job is planned, and plans for a cluster that was saved. Needs root."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from jobs import await_left
from laptop import Laptop, ronde_kube
from pods import FOREVER, await_phase, pods, remove, shell_pod
from testbed import Cluster

MIB = 1 << 20


def shares(plan: str) -> dict[str, int]:
    """Return the shares of a plan for programs."""
    return {share["node"]: share["gpus"] for share in json.loads(plan)["shares"]}


def memory(cluster: Cluster, node: str) -> int:
    """Return how many bytes a node has for pods."""
    amount = cluster.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]["memory"]
    return int(amount.removesuffix("Ki")) << 10


def take(cluster: Cluster, name: str, node: str, **amounts: object) -> None:
    """Have somebody else's pod ask for something that is not GPUs."""
    requests = {resource: str(amount) for resource, amount in amounts.items()}
    cluster.apply(shell_pod(name, FOREVER, node=node, container={"resources": {"requests": requests}}))
    await_phase(cluster, name, "Running")


def resources(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return what the container of a pod that trains asks for."""
    (train,) = (one for one in pods(cluster)[name]["spec"]["containers"] if one["name"] == "train")
    found: dict[str, Any] = train["resources"]
    return found


def test_a_node_with_enough_gpus_and_too_little_cpu_or_memory_is_not_chosen_and_says_why(laptop: Laptop) -> None:
    cluster = laptop.cluster
    # Of 64 cores two are left, and of the memory of the other node 256 MiB.
    take(cluster, "computes", "node-1", cpu=62)
    take(cluster, "remembers", "node-2", memory=memory(cluster, "node-2") - 256 * MIB)
    assert shares(ronde_kube(cluster, "plan", "--gpus", 4, "--json").stdout) == {"node-1": 4}
    each = ["--cpu-per-gpu", 4, "--memory-per-gpu", "300Mi"]
    reasons = {
        "node-1": "has 2 CPUs free; each GPU needs 4",
        "node-2": "has 256 MiB of memory free; each GPU needs 300 MiB",
    }
    plan = ronde_kube(cluster, "plan", "--gpus", 4, *each)
    assert plan.returncode == 1
    # One reason does not fit beside the node, and is broken between words.
    shown = " ".join(plan.stdout.split())
    assert all(reason in shown for reason in reasons.values()), plan.stdout

    command = laptop.start_run("equipped", 4, f"exec {FOREVER}", *each)
    said = ", ".join(f"{node} {reason}" for node, reason in reasons.items())
    command.await_said(f"waiting for 2 more GPUs: {said}")
    remove(cluster, "remembers")
    command.await_said("✓ started")
    assert "job equipped · 4 GPUs · node-2: 3, node-3: 1" in command.said()
    # As many times as the pod has GPUs. Memory is limited, too; a limit of CPU would only slow ranks down.
    for name, gpus in (("equipped-chief", 1), ("equipped-worker-0", 3)):
        counted = {"memory": str(gpus * 300 * MIB), "nvidia.com/gpu": str(gpus)}
        assert resources(cluster, name) == {"requests": {"cpu": str(gpus * 4), **counted}, "limits": counted}
    command.kill(signal.SIGINT)
    remove(cluster, "computes")
    await_left(cluster)


def test_a_cluster_that_was_saved_gives_the_same_plan_without_it(laptop: Laptop, tmp_path: Path) -> None:
    cluster = laptop.cluster
    cluster.apply(shell_pod("theirs", FOREVER, gpus=3, node="node-2"))
    await_phase(cluster, "theirs", "Running")
    seen = {}
    # As many as there are to be had, and one more: whoever has the rest is told, and for how long.
    for gpus, code in ((7, 0), (8, 1)):
        live = ronde_kube(cluster, "plan", "--gpus", gpus, "--json", "--save-snapshot", tmp_path / f"{gpus}.json")
        assert live.returncode == code, live.stderr
        seen[gpus] = live.stdout
    assert shares(seen[7]) == {"node-1": 5, "node-3": 2}
    assert "pod default/theirs" in seen[8]
    remove(cluster, "theirs")

    def later(saved: int, gpus: int, *words: object) -> tuple[int, str]:
        about = ["--gpus", gpus, "--json", "--snapshot", tmp_path / f"{saved}.json", *words]
        command = laptop.start("plan", *about, kubeconfig=tmp_path / "no-such-kubeconfig")
        return command.end(), command.output()

    assert later(7, 7) == (0, seen[7])
    assert later(8, 8) == (1, seen[8])
    # It is the cluster that was saved, not the plan.
    code, other = later(8, 4, "--policy", "spread")
    assert (code, shares(other)) == (0, {"node-1": 2, "node-3": 2})
