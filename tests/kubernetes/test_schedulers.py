"""Pods of a job go to the scheduler that it names, beside the usual one. Needs root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import await_job, remove_job, ronde_job
from laptop import Laptop
from testbed import Cluster, wait_for
from testbed.layout import program

NAME = "other-scheduler"


@pytest.fixture
def scheduler(job_cluster: Cluster) -> Iterator[str]:
    """Start another scheduler, for pods that ask for it alone; return what they call it."""
    plane = job_cluster.control_plane
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.access.by_token("system:kube-scheduler"))},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": NAME}],
    }
    file = job_cluster.folder / f"{NAME}.json"
    file.write_text(json.dumps(config))
    # The usual one has the usual port.
    own = [f"--cert-dir={job_cluster.folder / NAME}", "--bind-address=127.0.0.1", "--secure-port=10260"]
    process = plane.machine.start(NAME, program("kube-scheduler"), f"--config={file}", *own)
    yield NAME
    process.end()


def await_placed_by(cluster: Cluster, scheduler: str, *names: str) -> None:
    """Wait until it is told who has found places for these pods, and check that it was this scheduler alone."""
    path = "/api/v1/namespaces/default/events?fieldSelector=reason=Scheduled"

    def found() -> dict[str, set[str]]:
        events = [one for one in cluster.get(path)["items"] if one["involvedObject"]["name"] in names]
        return {
            name: {one["reportingComponent"] for one in events if one["involvedObject"]["name"] == name}
            for name in names
        }

    wait_for(lambda: f"places of all pods: {found()}", lambda: all(found().values()))
    assert found() == {name: {scheduler} for name in names}


def test_the_scheduler_that_a_job_or_its_template_names_finds_the_places_of_its_pods(
    scheduler: str, laptop: Laptop, tmp_path: Path
) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    cluster.apply(ronde_job("named", 6, "true", scheduler=scheduler))
    assert await_job(cluster, "named", "Succeeded")["nodes"] == "node-1: 5, node-3: 1"
    remove_job(cluster, "named")
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"spec": {"schedulerName": scheduler}}))
    for command in (
        laptop.start_run("templated", 6, "true", "--template", template),
        laptop.start_run("unnamed", 1, "true", "--node-selector", "kubernetes.io/hostname=node-2"),
    ):
        assert command.end() == 0, command
    await_placed_by(cluster, scheduler, "named-chief", "named-worker-0", "templated-chief", "templated-worker-0")
    await_placed_by(cluster, "default-scheduler", "unnamed-chief")
