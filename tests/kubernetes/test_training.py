"""Jobs train on the cluster with the images of deploy/images, in each of the ways there are. Needs root.

The command, the controller of deploy/kubernetes/manager.yaml and the pod of deploy/kubernetes/run.yaml, both files as
they are. Whichever way: six GPUs of 5, 3 and 2 are 5 + 1, the training converges, and all GPUs are free afterwards.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed import MANAGER_IMAGE, MANIFESTS, TRAINING_IMAGE, deployed_images
from pods import await_phase, log
from testbed import Cluster, ClusterError, wait_for

RONDE = Path(sys.executable).with_name("ronde")
DIGITS = ["python", "/examples/digits.py"]
ALL_FREE = {"node-1": 5, "node-2": 3, "node-3": 2}
SHARES = "node-1: 5, node-3: 1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster([5, 3, 2], images=[deployed_images()]) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def everything_is_given_back(cluster: Cluster) -> Iterator[None]:
    assert cluster.free_gpus() == ALL_FREE
    yield
    wait_for("all GPUs to be free", lambda: cluster.free_gpus() == ALL_FREE)


def ronde_kube(cluster: Cluster, verb: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end, as from a laptop with this cluster's kubeconfig."""
    environment = {**os.environ, **cluster.environment(), "RONDE_MANAGER_IMAGE": MANAGER_IMAGE, "LC_ALL": "C.UTF-8"}
    command = [str(word) for word in [RONDE, "kube", verb, *words]]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)


def pods(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return the pods of the default namespace by name."""
    return {pod["metadata"]["name"]: pod for pod in cluster.get("/api/v1/namespaces/default/pods")["items"]}


def await_only_pods(cluster: Cluster, *names: str) -> None:
    """Wait until these pods are left, and no others."""
    wait_for(f"only {names} to be left", lambda: set(pods(cluster)) == set(names))


def await_nothing_left(cluster: Cluster) -> None:
    """Wait until the namespace is as a new one is."""

    def left() -> set[str]:
        kinds = "pods,services,secrets,configmaps"
        found = json.loads(cluster.kubectl("get", kinds, "--output=json"))["items"]
        return {one["metadata"]["name"] for one in found} - {"kubernetes", "kube-root-ca.crt"}

    wait_for("nothing to be left", lambda: not left())


def assert_trained(output: str) -> None:
    """Check that six ranks learned what one process would have."""
    (ranks, accuracy) = re.findall(r"accuracy on (\d+) ranks ([\d.]+)%, .*: the same", output)[0]
    assert int(ranks) == 6
    assert float(accuracy) > 95


def test_six_gpus_train_and_are_free_again(cluster: Cluster) -> None:
    plan = json.loads(ronde_kube(cluster, "plan", "--gpus", 6, "--json").stdout)
    assert [(share["node"], share["gpus"]) for share in plan["shares"]] == [("node-1", 5), ("node-3", 1)]

    run = ronde_kube(cluster, "run", "--gpus", 6, "--image", TRAINING_IMAGE, "--name", "digits", "--", *DIGITS)
    assert run.returncode == 0, run.stderr
    assert_trained(run.stdout)
    assert f"job digits · 6 GPUs · {SHARES}" in run.stderr
    assert "6 GPUs free again · kubectl logs digits-chief (kept 1 h)" in run.stderr
    assert cluster.free_gpus() == ALL_FREE, "it said that they are free"

    await_only_pods(cluster, "digits-chief")
    assert pods(cluster)["digits-chief"]["spec"]["nodeName"] == "node-3"
    assert_trained(log(cluster, "digits-chief"))
    hosts = cluster.kubectl("get", "configmap", "digits-plan", "--output=jsonpath={.data.hostfile}")
    assert hosts.split() == ["digits-chief", "slots=1", "digits-worker-0", "slots=5"]

    # What owns everything takes it along.
    cluster.kubectl("delete", "configmap", "digits")
    await_nothing_left(cluster)


def test_a_script_finds_what_the_managers_image_brings_and_its_failure_is_the_commands(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys, ronde\n"
        "ronde.init()\n"
        "print('rank', ronde.rank(), 'has', ronde.__file__, flush=True)\n"
        "ronde.barrier()\n"
        "sys.exit(3 if ronde.rank() == 4 else 0)\n"
    )
    words = ["--gpus", 6, "--image", TRAINING_IMAGE, "--name", "fails", "--script", script, "--", "python", "fails.py"]
    run = ronde_kube(cluster, "run", *words)
    assert run.returncode == 3, run.stderr
    package = "/ronde/lib/python3/site-packages/ronde/__init__.py"
    assert {f"[{rank}] rank {rank} has {package}" for rank in range(6)} <= set(run.stdout.splitlines())
    assert "rank 4 on fails-worker-0 failed first: exit status 3" in run.stdout
    assert "error: fails-chief on node-3 ended with status 3" in run.stderr
    assert "6 GPUs free again" in run.stderr
    await_only_pods(cluster, "fails-chief")
    cluster.kubectl("delete", "configmap", "fails")
    await_nothing_left(cluster)


def test_the_manifests_as_they_are_make_rondejobs_run(cluster: Cluster) -> None:
    cluster.kubectl("apply", "--filename", MANIFESTS / "manager.yaml")
    cluster.kubectl("wait", "--namespace=ronde-system", "--for=condition=Available", "deployment/ronde-manager")
    job = {"gpus": 6, "image": TRAINING_IMAGE, "command": DIGITS}
    api = {"apiVersion": "ronde.dev/v1alpha1", "kind": "RondeJob"}
    for wrong in (0, -1, "six"):
        with pytest.raises(ClusterError, match=r"spec\.gpus"):
            cluster.apply({**api, "metadata": {"name": "wrong"}, "spec": {**job, "gpus": wrong}})
    cluster.apply({**api, "metadata": {"name": "digits"}, "spec": job})

    def ended() -> dict[str, Any] | None:
        path = "/apis/ronde.dev/v1alpha1/namespaces/default/rondejobs/digits"
        status: dict[str, Any] = cluster.get(path).get("status", {})
        return status if status.get("phase") in ("Succeeded", "Failed") else None

    status = wait_for("the job to end", ended, 120)
    assert (status["phase"], status["nodes"], status["exitCode"]) == ("Succeeded", SHARES, 0), status
    assert_trained(log(cluster, "digits-chief"))
    await_only_pods(cluster, "digits-chief")
    assert "the training ended well" in cluster.kubectl("describe", "rondejob", "digits")

    cluster.kubectl("delete", "rondejob", "digits")
    await_nothing_left(cluster)
    cluster.kubectl("delete", "--filename", MANIFESTS / "manager.yaml")


def test_a_pod_manages_its_job_with_the_rights_of_the_manifest(cluster: Cluster) -> None:
    cluster.kubectl("apply", "--filename", MANIFESTS / "run.yaml")
    await_phase(cluster, "digits", "Succeeded", seconds=120)
    shown = log(cluster, "digits")
    assert f"job digits · 6 GPUs · {SHARES}" in shown
    assert_trained(shown)
    await_only_pods(cluster, "digits", "digits-chief")
    cluster.kubectl("delete", "--filename", MANIFESTS / "run.yaml")
    await_nothing_left(cluster)
