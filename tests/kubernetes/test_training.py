"""Jobs train on the cluster with the images of deploy/images, in each of the ways there are. Needs root.

The command, the controller of deploy/kubernetes/manager.yaml and the pod of deploy/kubernetes/run.yaml, both files as
they are. Whichever way: six GPUs of 5, 3 and 2 are 5 + 1, the training converges, and all GPUs are free afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed import MANIFESTS, TRAINING_IMAGE, deployed_images
from jobs import ALL_FREE, assert_trained
from laptop import ronde_kube
from pods import await_nothing_left, await_only_pods, await_phase, log, pods
from testbed import SHELL_IMAGE, Cluster, ClusterError, wait_for

DIGITS = ["python", "/examples/digits.py"]
SHARES = "node-1: 5, node-3: 1"

pytestmark = pytest.mark.usefixtures("everything_is_given_back")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster([5, 3, 2], images=[deployed_images()]) as cluster:
        yield cluster


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


def test_an_image_that_has_ronde_trains_with_its_own_and_one_that_has_not_says_so(cluster: Cluster) -> None:
    words = ["--gpus", 6, "--image-has-ronde", "--name", "inside", "--image"]
    own = "import ronde; ronde.init(); print('rank', ronde.rank(), 'has', ronde.__file__)"
    run = ronde_kube(cluster, "run", *words, TRAINING_IMAGE, "--", "python", "-c", own)
    assert run.returncode == 0, run.stderr
    said = run.stdout.splitlines()
    assert [line.split()[4].startswith("/ronde/") for line in said if " has " in line] == [False] * 6, run.stdout
    assert all("initContainers" not in pod["spec"] for pod in pods(cluster).values())
    cluster.kubectl("delete", "configmap", "inside")
    await_nothing_left(cluster)

    run = ronde_kube(cluster, "run", *words, SHELL_IMAGE, "--", "python", "-c", own)
    assert run.returncode == 128, run.stderr
    assert "its image has no ronde on the PATH; without imageHasRonde (--image-has-ronde) it is brought" in run.stderr
    assert "6 GPUs free again" in run.stderr
    cluster.kubectl("delete", "configmap", "inside")
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
