"""Simulated nodes: pods are placed and counted as on others, run at once, and end when a test says so. Needs root."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pods import await_phase, remove, shell_pod
from testbed import Cluster, Simulated

ENDING = {"test/ends": "yes"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster([1], simulated=Simulated(3, gpus=8, ending=ENDING, seconds=0.2), audit=True) as cluster:
        yield cluster


def test_they_stand_beside_real_nodes_and_have_gpus(cluster: Cluster) -> None:
    assert cluster.free_gpus() == {"node-1": 1, "sim-0001": 8, "sim-0002": 8, "sim-0003": 8}


def test_a_pod_takes_gpus_until_it_ends_and_only_those_end_that_should(cluster: Cluster) -> None:
    stays = shell_pod("stays", "", gpus=8)
    cluster.apply(stays, shell_pod("ends", "", gpus=8, labels=ENDING))
    await_phase(cluster, "ends", "Succeeded")
    node = await_phase(cluster, "stays", "Running")["spec"]["nodeName"]
    assert node.startswith("sim-")
    assert cluster.free_gpus() == {"node-1": 1, "sim-0001": 8, "sim-0002": 8, "sim-0003": 8} | {node: 0}
    remove(cluster, "stays", "ends")
    assert sum(cluster.free_gpus().values()) == 25


def test_the_audit_log_has_who_asked_for_what(cluster: Cluster) -> None:
    cluster.apply(shell_pod("logged", "", gpus=8))
    await_phase(cluster, "logged", "Running")
    remove(cluster, "logged")
    log = cluster.control_plane.audit_log
    assert log is not None
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    about = [one for one in requests if one.get("objectRef", {}).get("name") == "logged"]
    done = {(one["user"]["username"], one["verb"], one["objectRef"].get("subresource")) for one in about}
    assert ("system:kube-scheduler", "create", "binding") in done
    assert ("admin", "delete", None) in done
    assert not any(one["user"]["username"] == "kwok" for one in requests), "simulated nodes are not counted"
