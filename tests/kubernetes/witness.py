"""Sees every change of every pod, and adds up GPUs after each: nobody may have more than there are.

Two sums are watched on every node. What pods have got, from when the scheduler has placed them until they have ended or
are gone. And what jobs were promised by each other: their pods count from when the scheduler is let at them, which is
when their manager is sure of its GPUs. The changes of pods come one after the other, in the order in which they
happened, so no overlap of two jobs is too short to be seen.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from testbed import Cluster

RESOURCE = "nvidia.com/gpu"


class Witness:
    """Looks on from the beginning of the block to its end, and then says what was wrong."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.control_plane.api
        self._there = {
            node["metadata"]["name"]: int(node["status"]["allocatable"].get(RESOURCE, 0))
            for node in cluster.get("/api/v1/nodes")["items"]
        }
        self._pods: dict[str, dict[str, Any]] = {}
        self._last = ""
        self.wrong: list[str] = []
        # The names of all pods that had GPUs.
        self.served: set[str] = set()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, failed: object, *_rest: object) -> None:
        # A last change that it must have seen before it may leave.
        self._last = "witness-may-leave"
        path = "/api/v1/namespaces/default/pods"
        gated = {"schedulingGates": [{"name": "ronde.test/never"}], "containers": [{"name": "none", "image": "none"}]}
        self._api.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self._last}, "spec": gated})
        self._thread.join(60)
        self._api.request("DELETE", f"{path}/{self._last}")
        if failed is None:
            assert not self._thread.is_alive(), "the witness has fallen behind"
            assert not self.wrong, self.wrong

    def _look(self) -> None:
        for change in self._api.watch("/api/v1/pods"):
            pod = change["object"]
            name = pod["metadata"]["name"]
            if name == self._last:
                return
            if change["type"] == "DELETED":
                self._pods.pop(pod["metadata"]["uid"], None)
            else:
                self._pods[pod["metadata"]["uid"]] = pod
            self._add_up()

    def _add_up(self) -> None:
        holding = [pod for pod in self._pods.values() if _gpus(pod)]
        placed = [(pod["spec"].get("nodeName", ""), pod) for pod in holding]
        promised = [(_pinned(pod["spec"]), pod) for pod in holding if not pod["spec"].get("schedulingGates")]
        self.served |= {pod["metadata"]["name"] for node, pod in placed if node}
        for what, pairs in (("given", placed), ("promised", promised)):
            sums: Counter[str] = Counter()
            for node, pod in pairs:
                sums[node] += _gpus(pod)
            for node, gpus in sums.items():
                if node and gpus > self._there.get(node, 0):
                    names = sorted(pod["metadata"]["name"] for on, pod in pairs if on == node)
                    self.wrong.append(f"{gpus} GPUs of {node} were {what} to {names}")


def _gpus(pod: dict[str, Any]) -> int:
    """Return how many GPUs a pod asks for, if it has not ended."""
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    containers = pod["spec"]["containers"]
    return sum(int(one.get("resources", {}).get("requests", {}).get(RESOURCE, 0)) for one in containers)


def _pinned(spec: dict[str, Any]) -> str:
    """Return the node that a pod of a job is pinned to; nothing for a pod of somebody else."""
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    named = [field["values"][0] for term in terms for field in term.get("matchFields", ())]
    return named[0] if named else ""
