"""Pods as the tests need them: a line of shell, on a node, with GPUs; and what is left of them and of others' jobs."""

from __future__ import annotations

import json
from typing import Any

from testbed import SHELL_IMAGE, Cluster, wait_for

# A command for pods and ranks that runs until it is killed.
FOREVER = "sleep 1000"  # sleep: is there until it is killed


def until(command: str) -> str:
    """Return a line of shell that tries a command until it succeeds."""
    return f"until {command}; do sleep 0.2; done"  # sleep: between two tries


def shell_pod(
    name: str, script: str, *, gpus: int = 0, node: str = "", memory: str = "", **spec: Any
) -> dict[str, Any]:
    """Describe a pod that runs a script once. It goes at once when it is deleted."""
    limits: dict[str, str] = {}
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    if memory:
        limits["memory"] = memory
    container = {"name": "main", "image": SHELL_IMAGE, "command": ["sh", "-c", script], "resources": {"limits": limits}}
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    containers = [{**container, **spec.pop("container", {})}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, **spec.pop("labels", {})}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": containers,
            **selector,
            **spec,
        },
    }


def pod(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return a pod of the default namespace as the API server has it now."""
    return cluster.get(f"/api/v1/namespaces/default/pods/{name}")


def await_phase(cluster: Cluster, name: str, *phases: str, seconds: float = 60) -> dict[str, Any]:
    """Wait until a pod is in one of the phases, and return it."""

    def look() -> dict[str, Any] | None:
        now = pod(cluster, name)
        if now["status"]["phase"] in phases:
            return now
        # It will not come any more.
        assert now["status"]["phase"] not in ("Succeeded", "Failed"), (
            f"{json.dumps(now['status'])}\n{log(cluster, name)}"
        )
        return None

    return wait_for(f"{name} to be {' or '.join(phases)}", look, seconds)


def log(cluster: Cluster, name: str) -> str:
    """Return what a pod has printed."""
    return cluster.kubectl("logs", name)


def output(cluster: Cluster, described: dict[str, Any], seconds: float = 60) -> str:
    """Run a pod to its good end, remove it, and return what it printed."""
    name = described["metadata"]["name"]
    cluster.apply(described)
    await_phase(cluster, name, "Succeeded", seconds=seconds)
    printed = log(cluster, name)
    remove(cluster, name)
    return printed


def remove(cluster: Cluster, *names: str) -> None:
    """Delete pods, and wait until they are gone."""
    cluster.kubectl("delete", "pod", *names, "--ignore-not-found", "--wait=true", "--timeout=60s")


def pods(cluster: Cluster, namespace: str = "default") -> dict[str, dict[str, Any]]:
    """Return the pods of a namespace by name."""
    return {pod["metadata"]["name"]: pod for pod in cluster.get(f"/api/v1/namespaces/{namespace}/pods")["items"]}


def await_only_pods(cluster: Cluster, *names: str, namespace: str = "default") -> None:
    """Wait until these pods are left, and no others."""
    wait_for(f"only {names} to be left", lambda: set(pods(cluster, namespace)) == set(names))


def await_nothing_left(cluster: Cluster) -> None:
    """Wait until the default namespace is as a new one is."""

    def left() -> set[str]:
        kinds = "pods,services,secrets,configmaps"
        found = json.loads(cluster.kubectl("get", kinds, "--output=json"))["items"]
        return {one["metadata"]["name"] for one in found} - {"kubernetes", "kube-root-ca.crt"}

    wait_for("nothing to be left", lambda: not left())
