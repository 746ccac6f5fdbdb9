"""RondeJobs as the tests need them, and what jobs leave behind."""

from __future__ import annotations

import json
import re
from typing import Any

from deployed import TRAINING_IMAGE
from pods import FOREVER, pods, until
from testbed import SHELL_IMAGE, Cluster, ClusterError, wait_for

ALL_FREE = {"node-1": 5, "node-2": 3, "node-3": 2}
API = "/apis/ronde.dev/v1alpha1"
# What every namespace has.
USUAL = {"services/kubernetes", "configmaps/kube-root-ca.crt"}

# Runs for as long as it is let; the second set of pods ends at once.
ENDS_IN_THE_SECOND_ATTEMPT = f"case $POD_NAME in *-r1) exit 0;; esac; exec {FOREVER}"
# Every rank goes on until its pod has this file.
UNTIL_ENOUGH = until("[ -e /tmp/enough ]")
A_WHILE = "exec sleep 3"  # sleep: holds its GPUs while others look around; nothing depends on how long
# Pods that are long about starting, and quick about ending: a first process that does not say so hears no signal.
SLEEPS = ["sh", "-c", f"trap 'exit 1' TERM; {FOREVER} & wait"]
SLOW_START = {"spec": {"initContainers": [{"name": "slow", "image": SHELL_IMAGE, "command": SLEEPS}]}}


def ronde_job(name: str, gpus: object, script: str, namespace: str = "default", **spec: object) -> dict[str, Any]:
    """Describe a job with a line of shell for every rank. Nothing of it is kept after its end but itself."""
    known = {"gpus": gpus, "image": TRAINING_IMAGE, "command": ["sh", "-c", script], "ttlSecondsAfterFinished": 0}
    return {
        "apiVersion": "ronde.dev/v1alpha1",
        "kind": "RondeJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**known, **spec},
    }


def status(cluster: Cluster, name: str, namespace: str = "default") -> dict[str, Any]:
    """Return what is known of a job."""
    found: dict[str, Any] = cluster.get(f"{API}/namespaces/{namespace}/rondejobs/{name}").get("status", {})
    return found


def await_job(
    cluster: Cluster, name: str, phase: str, reason: str = "", *, namespace: str = "default", seconds: float = 60
) -> dict[str, Any]:
    """Wait until a job is in a phase, for a reason if that matters, and return its status."""

    def look() -> dict[str, Any] | None:
        now = status(cluster, name, namespace)
        if now.get("phase") == phase and reason in ("", now["reason"]):
            return now
        if now.get("phase") in ("Succeeded", "Failed"):
            # It will not come any more.
            raise ClusterError(f"{name} was to be {phase} {reason}: {json.dumps(now)}")
        return None

    return wait_for(lambda: f"{name} to be {phase} {reason}: {status(cluster, name, namespace)}", look, seconds)


def enough(cluster: Cluster, name: str, namespace: str = "default") -> None:
    """End a job that runs UNTIL_ENOUGH."""
    for pod in pods(cluster, namespace):
        if pod.startswith(f"{name}-"):
            what = [f"--namespace={namespace}", "--container=train", "--", "touch", "/tmp/enough"]
            cluster.kubectl("exec", pod, *what)


def await_definitions(cluster: Cluster) -> None:
    """Wait until the API server takes jobs. `kubectl wait` fails on a definition that has no status yet."""

    def is_established() -> bool:
        definition = cluster.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rondejobs.ronde.dev")
        conditions = definition.get("status", {}).get("conditions") or []
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    wait_for("the definition of jobs to be established", is_established)


def left(cluster: Cluster, namespace: str = "default") -> set[str]:
    """Return what is in a namespace that is not in a new one."""
    found = set(USUAL)
    for kind in ("pods", "services", "secrets", "configmaps"):
        items = cluster.get(f"/api/v1/namespaces/{namespace}/{kind}")["items"]
        found |= {f"{kind}/{item['metadata']['name']}" for item in items}
    items = cluster.get(f"{API}/namespaces/{namespace}/rondejobs")["items"]
    found |= {f"rondejobs/{item['metadata']['name']}" for item in items}
    return found - USUAL


def await_left(cluster: Cluster, *names: str, namespace: str = "default", seconds: float = 60) -> None:
    """Wait until these are left in a namespace, and nothing else; `pods/digits-chief`, for example."""
    wanted = set(names)
    wait_for(
        lambda: f"only {wanted or 'nothing'} to be left, and there is {left(cluster, namespace)}",
        lambda: left(cluster, namespace) == wanted,
        seconds,
    )


def await_all_free(cluster: Cluster, seconds: float = 60) -> None:
    """Wait until no pod has a GPU of the nodes that the cluster was made with."""

    def free() -> dict[str, int]:
        now = cluster.free_gpus()
        return {node: now.get(node, 0) for node in ALL_FREE}

    wait_for(lambda: f"{ALL_FREE} to be free, and there is {free()}", lambda: free() == ALL_FREE, seconds)


def remove_job(cluster: Cluster, name: str, namespace: str = "default", seconds: float = 60) -> None:
    """Delete a job, and wait until nothing of it is left."""
    cluster.kubectl("delete", "rondejob", name, f"--namespace={namespace}", "--wait=true", "--timeout=60s")
    await_left(cluster, namespace=namespace, seconds=seconds)


def clear(cluster: Cluster, namespace: str = "default") -> None:
    """Delete whatever a test that failed has left, so that the next one begins as usual."""
    for one in left(cluster, namespace):
        kind, _, name = one.partition("/")
        cluster.result("delete", kind, name, f"--namespace={namespace}", "--wait=true", "--timeout=60s")


def assert_trained(output: str) -> None:
    """Check that six ranks learned what one process would have."""
    (ranks, accuracy) = re.findall(r"accuracy on (\d+) ranks ([\d.]+)%, .*: the same", output)[0]
    assert int(ranks) == 6
    assert float(accuracy) > 95
