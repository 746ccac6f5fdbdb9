"""What can happen to nodes happens, and the cluster notices. Needs root."""

from __future__ import annotations

import time

import pytest
from pods import FOREVER, await_phase, log, output, remove, shell_pod, until
from testbed import Cluster, ClusterError, NodeSpec, wait_for


def readiness(cluster: Cluster, name: str) -> str:
    """Return what the cluster thinks of a node: "True", "False", or "Unknown" if it has not been heard of."""
    conditions = cluster.get(f"/api/v1/nodes/{name}")["status"]["conditions"]
    return str(next(one["status"] for one in conditions if one["type"] == "Ready"))


def await_readiness(cluster: Cluster, name: str, wanted: str) -> None:
    wait_for(f"{name} to be {wanted}", lambda: readiness(cluster, name) == wanted, 60)


def test_a_node_comes_with_labels_taints_and_another_resource_and_goes(cluster: Cluster) -> None:
    slices = "nvidia.com/mig-1g.10gb"
    spec = NodeSpec(4, slices, labels={"rack": "b"}, taints=["nvidia.com/gpu=present:NoSchedule"])
    node = cluster.add_node(spec)
    assert cluster.free_gpus(slices)[node.name] == 4
    described = cluster.get(f"/api/v1/nodes/{node.name}")
    assert described["metadata"]["labels"]["rack"] == "b"
    assert {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"} in described["spec"]["taints"]
    # It is a part of the network, too: its pods and those of others reach each other.
    tolerant = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
    cluster.apply(shell_pod("far", "exec nc -l -p 7000 -e echo reached", node=node.name, **tolerant))
    address = await_phase(cluster, "far", "Running")["status"]["podIP"]
    asked = output(cluster, shell_pod("near", until(f"nc {address} 7000"), node="node-1"))
    assert asked == "reached\n"
    remove(cluster, "far")
    cluster.remove_node(node.name)
    assert node.name not in cluster.free_gpus()


def test_a_frozen_kubelet_makes_its_node_unknown_while_its_pods_run_on(cluster: Cluster) -> None:
    node = cluster.nodes["node-3"]
    script = "while :; do date +%s; sleep 1; done"  # sleep: that often is enough
    cluster.apply(shell_pod("ticks", script, node="node-3"))
    await_phase(cluster, "ticks", "Running")
    node.freeze_kubelet()
    frozen = time.time()
    await_readiness(cluster, "node-3", "Unknown")
    thawed = time.time()
    node.thaw_kubelet()
    await_readiness(cluster, "node-3", "True")
    ticks = [int(tick) for tick in log(cluster, "ticks").split()]
    assert any(frozen < tick < thawed for tick in ticks), "the pod stood still with the kubelet"
    remove(cluster, "ticks")


def test_a_killed_kubelet_comes_back_with_its_pods_and_gpus(cluster: Cluster) -> None:
    node = cluster.nodes["node-2"]
    cluster.apply(shell_pod("stays", FOREVER, gpus=2, node="node-2"))
    uid = await_phase(cluster, "stays", "Running")["metadata"]["uid"]
    node.kill_kubelet()
    node.start_kubelet()
    node.await_ready()
    assert await_phase(cluster, "stays", "Running")["metadata"]["uid"] == uid
    assert cluster.free_gpus()["node-2"] == 1
    # The GPUs that the first pod has are not given away again.
    seen = output(cluster, shell_pod("next", "echo $NVIDIA_VISIBLE_DEVICES", gpus=1, node="node-2")).strip()
    assert seen not in cluster.kubectl("exec", "stays", "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES")
    remove(cluster, "stays")


def test_a_broken_gpu_is_not_offered_until_it_is_repaired(cluster: Cluster) -> None:
    node = cluster.nodes["node-1"]
    node.break_gpu()
    wait_for("4 GPUs", lambda: cluster.free_gpus()["node-1"] == 4)
    node.repair_gpus()
    wait_for("5 GPUs", lambda: cluster.free_gpus()["node-1"] == 5)


def test_a_node_without_power_is_lost_with_all_it_had(cluster: Cluster) -> None:
    node = cluster.add_node(1)
    cluster.apply(shell_pod("lost", FOREVER, gpus=1, node=node.name))
    await_phase(cluster, "lost", "Running")
    node.cut_power()
    await_readiness(cluster, node.name, "Unknown")
    with pytest.raises(ClusterError, match="has no power"):
        node.load_image(cluster.folder / "shell.tar")
    # Its pod counts as long as nobody says that the node is gone for good.
    assert cluster.free_gpus()[node.name] == 0
    cluster.remove_node(node.name)
    assert node.name not in cluster.free_gpus()
    # The cluster would forget it by itself after a minute.
    cluster.kubectl("delete", "pod", "lost", "--force", "--ignore-not-found")
