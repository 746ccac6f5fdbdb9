"""RondeJobs that make no sense, ask for too much, or are many: each gets its answer, and none holds up the others.

The controller runs as a process of this machine. Its jobs need no images: how far they come with pods that never start
is enough to see who got GPUs. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from jobs import await_definitions
from laptop import RONDE
from testbed import Cluster, wait_for

# Phases of a job that has GPUs.
HAS_GPUS = {"Claimed", "Placing", "Scheduled", "Running"}


def job(name: str, **spec: Any) -> dict[str, Any]:
    asked = {"gpus": 1, "image": "ronde.test/none:1", "command": ["true"], **spec}
    return {"apiVersion": "ronde.dev/v1alpha1", "kind": "RondeJob", "metadata": {"name": name}, "spec": asked}


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    return cluster.get(f"/apis/ronde.dev/v1alpha1/namespaces/default/rondejobs/{name}").get("status", {})


def await_reason(cluster: Cluster, name: str, reason: str) -> dict[str, Any]:
    wait_for(f"{name} to be {reason}", lambda: status(cluster, name).get("reason") == reason)
    return status(cluster, name)


def environment(cluster: Cluster) -> dict[str, str]:
    # By a name of its own, so that one that follows another need not wait for the lease to run out.
    return {**os.environ, **cluster.environment(), "POD_NAME": "manager-of-tests", "POD_NAMESPACE": "ronde-system"}


@contextlib.contextmanager
def controller(cluster: Cluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [RONDE, "kube", "manager", "--listen", "127.0.0.1:0", *words]
    with subprocess.Popen(command, env=environment(cluster), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
            assert process.poll() is None, process.communicate()[1]
        finally:
            process.kill()


def install_definitions(cluster: Cluster) -> None:
    """Install what jobs need, except for a controller."""
    command = [RONDE, "kube", "install", "--print"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    wanted = ("Namespace", "CustomResourceDefinition")
    parts = [part for part in printed.split("---\n") if any(f"\nkind: {kind}\n" in f"\n{part}" for kind in wanted)]
    assert len(parts) == len(wanted)
    cluster.kubectl("apply", "--filename=-", input="---\n".join(parts))
    await_definitions(cluster)


@pytest.fixture(scope="module")
def definitions(cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster with the definition of RondeJob, and no controller but those of the tests."""
    install_definitions(cluster)
    yield cluster
    subprocess.run([RONDE, "kube", "uninstall"], env=environment(cluster), check=True)


@pytest.fixture(autouse=True)
def no_job_is_left(definitions: Cluster) -> Iterator[None]:
    yield
    definitions.kubectl("delete", "rondejobs", "--all")
    wait_for("all pods to be gone", lambda: not definitions.get("/api/v1/namespaces/default/pods")["items"])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"memoryPerGpu": "16GB"}, "spec.memoryPerGpu"),
        ({"gpus": "8..4"}, "the fewest come first"),
        ({"gpus": 99999999999}, "spec.gpus"),
        ({"gpus": 0}, "spec.gpus"),
        ({"gpus": "six"}, "spec.gpus"),
        ({"retries": 5000000000}, "spec.retries"),
        ({"priority": 3000000000}, "spec.priority"),
        ({"maxGpusPerNode": 0}, "spec.maxGpusPerNode"),
        ({"deadlineSeconds": 0}, "spec.deadlineSeconds"),
        ({"image": ""}, "spec.image"),
        ({"command": []}, "spec.command"),
        ({"resource": "gpu"}, "spec.resource"),
        ({"imagePullPolicy": "Sometimes"}, "spec.imagePullPolicy"),
        ({"volumes": [{"claim": "data", "path": "data"}]}, "spec.volumes[0].path"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_applied(
    definitions: Cluster, spec: dict[str, Any], words: str
) -> None:
    answer = definitions.result("apply", "--filename=-", input=json.dumps(job("strange", **spec)))
    assert answer.returncode != 0
    assert words in answer.stderr


def test_a_name_that_is_too_long_is_refused_and_all_that_makes_sense_is_taken(definitions: Cluster) -> None:
    answer = definitions.result("apply", "--filename=-", input=json.dumps(job("a" * 41)))
    assert "at most 40 small letters" in answer.stderr
    for gpus in (6, "6", "4..8", " 4 .. 8 ", "8..8"):
        definitions.apply(job("plain", gpus=gpus, cpuPerGpu=2, memoryPerGpu="1.5Gi", sharedMemory="500M"))


def test_a_job_that_cannot_be_read_fails_alone_and_says_why(definitions: Cluster) -> None:
    # The schema cannot count, so it lets an amount pass that no machine has.
    definitions.apply(job("unreadable", memoryPerGpu="99999999999999Ei"), job("plain"))
    with controller(definitions):
        told = await_reason(definitions, "unreadable", "Invalid")
        assert told["phase"] == "Failed"
        assert "memoryPerGpu" in told["message"]
        wait_for("the other one to have GPUs", lambda: status(definitions, "plain").get("phase") in HAS_GPUS)
        events = definitions.kubectl("get", "events", "--field-selector=involvedObject.name=unreadable")
        assert "memoryPerGpu" in events
    # It does not hide others from one that is started anew.
    definitions.apply(job("later"))
    with controller(definitions):
        wait_for("the later one to have GPUs", lambda: status(definitions, "later").get("phase") in HAS_GPUS)


def test_a_job_that_can_never_start_holds_up_nobody(definitions: Cluster) -> None:
    definitions.apply(job("impossible", gpus=11))
    with controller(definitions, "--hold-after", "0"):
        await_reason(definitions, "impossible", "NeverEnough")
        definitions.apply(job("small", gpus=2))
        wait_for("the small one to have GPUs", lambda: status(definitions, "small").get("phase") in HAS_GPUS)
        # One that only has to wait for GPUs is not overtaken.
        definitions.apply(job("large", gpus=10))
        await_reason(definitions, "large", "NotEnoughGpus")
        definitions.apply(job("late", gpus=1))
        assert "waits behind default/large" in await_reason(definitions, "late", "Queued")["message"]


def test_of_many_jobs_as_many_have_gpus_as_there_are(definitions: Cluster) -> None:
    names = [f"many-{index:02}" for index in range(24)]
    definitions.apply(*(job(name) for name in names))

    def with_gpus() -> list[str]:
        return [name for name in names if status(definitions, name).get("phase") in HAS_GPUS]

    with controller(definitions):
        wait_for("all GPUs to be claimed", lambda: len(with_gpus()) == 10)
        # None had to yield: what one chooses is known to the next.
        assert all(status(definitions, name).get("yields", 0) == 0 for name in names)


def test_what_is_uninstalled_leaves_nothing_behind_even_right_after_it_was_installed(definitions: Cluster) -> None:
    subprocess.run([RONDE, "kube", "install"], env=environment(definitions), check=True)
    definitions.apply(job("left", gpus=6))
    with controller(definitions):
        wait_for("it to have GPUs", lambda: status(definitions, "left").get("phase") in HAS_GPUS)
    command = [RONDE, "kube", "uninstall"]
    done = subprocess.run(command, env=environment(definitions), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rondejob default/left deleted" in done.stderr
    assert "customresourcedefinition rondejobs.ronde.dev deleted" in done.stderr
    for kind in ("pods", "services", "configmaps", "secrets"):
        found = definitions.get(f"/api/v1/{kind}?labelSelector=app.kubernetes.io/managed-by%3Dronde")["items"]
        assert found == [], kind
    # For the other tests.
    definitions.kubectl("delete", "namespace", "ronde-system", "--ignore-not-found")
    install_definitions(definitions)
