"""Nodes with taints, racks, slices and shared GPUs: which a job gets, and what is said of the others. Needs root."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from jobs import ALL_FREE, await_all_free, await_left
from laptop import Laptop, ronde_kube
from pods import FOREVER, await_phase, remove, shell_pod
from testbed import Cluster, NodeSpec

RACK = "example.com/rack"
SLICES = "nvidia.com/mig-1g.10gb"


@contextmanager
def tainted(cluster: Cluster, taint: str, *nodes: str) -> Iterator[None]:
    """Have a taint on nodes for a while."""
    cluster.kubectl("taint", "node", *nodes, taint)
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", *nodes, f"{taint}-")


@contextmanager
def labelled(cluster: Cluster, label: str, values: Mapping[str, str]) -> Iterator[None]:
    """Have a label on nodes for a while, with a value for each."""
    for node, value in values.items():
        cluster.kubectl("label", "node", node, f"{label}={value}")
    try:
        yield
    finally:
        cluster.kubectl("label", "node", *values, f"{label}-")


def planned(cluster: Cluster, gpus: int, *flags: object) -> dict[str, int]:
    """Return the shares that a job would get."""
    plan = json.loads(ronde_kube(cluster, "plan", "--gpus", gpus, "--json", *flags).stdout)
    return {share["node"]: share["gpus"] for share in plan["shares"]}


def test_the_taint_of_gpu_nodes_is_put_up_with_and_another_is_named_until_it_is(laptop: Laptop) -> None:
    cluster = laptop.cluster
    usual, other = "nvidia.com/gpu=present:NoSchedule", "team=vision:NoSchedule"
    with tainted(cluster, usual, *ALL_FREE), tainted(cluster, other, "node-1"):
        shy = laptop.start_run("shy", 6, "true")
        shy.await_said(f"waiting for 1 more GPU: node-1 is tainted {other}")
        shy.kill(signal.SIGINT)
        await_left(cluster)
        bold = laptop.start_run("bold", 6, "true", "--toleration", other)
        assert bold.end() == 0, bold
        assert "job bold · 6 GPUs · node-1: 5, node-3: 1" in bold.said()
        await_left(cluster)


def test_a_job_that_must_stay_in_a_rack_takes_a_looser_fit_there_and_waits_for_it(laptop: Laptop) -> None:
    cluster = laptop.cluster
    inside = ["--topology", RACK, "--topology-required"]
    with labelled(cluster, RACK, {"node-1": "a", "node-2": "a", "node-3": "b"}):
        assert planned(cluster, 6) == {"node-1": 5, "node-3": 1}, "the tightest fit has two racks"
        cluster.apply(shell_pod("theirs", FOREVER, gpus=3, node="node-2"))
        await_phase(cluster, "theirs", "Running")
        command = laptop.start_run("together", 6, "true", *inside)
        command.await_said("waiting for 1 more GPU: node-2 is full")
        remove(cluster, "theirs")
        assert command.end() == 0, command
        assert "job together · 6 GPUs · node-1: 5, node-2: 1" in command.said()

        # Where no rack has as many, only one that would rather stay inside goes on.
        assert sum(planned(cluster, 9, "--topology", RACK).values()) == 9
        apart = laptop.start_run("apart", 9, "true", *inside)
        assert apart.end() == 1, apart
        assert f"there are only 8 in one domain of {RACK}, even if nobody used any" in apart.said()


@pytest.fixture
def slices(job_cluster: Cluster) -> Iterator[str]:
    """Add a node whose GPUs are slices, with the taint that such nodes have; return its name."""
    spec = NodeSpec(4, SLICES, taints=["nvidia.com/gpu=present:NoSchedule"])
    node = job_cluster.add_node(spec)
    yield node.name
    job_cluster.remove_node(node.name)


def test_slices_of_gpus_are_asked_for_by_their_own_name(slices: str, laptop: Laptop) -> None:
    cluster = laptop.cluster
    command = laptop.start_run("sliced", 3, "echo $NVIDIA_VISIBLE_DEVICES", "--resource", SLICES)
    assert command.end() == 0, command
    assert f"job sliced · 3 GPUs · {slices}: 3" in command.said()
    assert sum("GPU-pretended-" in line for line in command.output().splitlines()) == 3, command
    few = laptop.start_run("few", 5, "true", "--resource", SLICES)
    assert few.end() == 1, few
    assert f"5 GPUs ({SLICES}) are asked for, and there are only 4" in few.said()
    await_left(cluster)
    await_all_free(cluster)


def test_gpus_that_are_shared_or_not_counted_are_pointed_out(laptop: Laptop) -> None:
    cluster = laptop.cluster
    # Its GPUs are known by a label alone, as where only DRA gives them out. Nothing runs there, so it need not be real.
    labels = {"nvidia.com/gpu.count": "8"}
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "dra-only", "labels": labels}})
    try:
        with labelled(cluster, "nvidia.com/gpu.replicas", {"node-2": "4"}):
            for command in (laptop.start("plan", "--gpus", 1), laptop.start_run("told", 1, "true")):
                assert command.end() == 0, command
                shared = "note: GPUs are time-sliced, so several ranks may share one: node-2 (by 4)\n"
                assert shared in command.said()
                unknown = "note: GPUs that no device plug-in offers are not counted (given out by DRA, or not at all): "
                assert f"{unknown}dra-only (8)\n" in command.said()
    finally:
        cluster.kubectl("delete", "node", "dra-only")
