"""Pods as the tests need them: a line of shell, on a node, with GPUs."""

from __future__ import annotations

import json
from typing import Any

from testbed import SHELL_IMAGE, Cluster, wait_for


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
