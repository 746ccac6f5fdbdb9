"""Nodes that are only pretended, by the hundreds and thousands: kwok says for each that it is there and its pods run.

For what a control plane and a manager do on large clusters. The scheduler counts and places as everywhere; a pod runs
as soon as it has a node, and is gone as soon as it is deleted, but nothing is ever started. So no container ends by
itself, either: pods with one of the labels in `ending` succeed some time after they run, as the one does that trains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .access import Api
from .control_plane import ControlPlane
from .errors import ClusterError
from .layout import program

# What a node is known by to kwok, which leaves others alone.
MARK = "kwok.x-k8s.io/node"

_RUNNING = """{{ $now := Now }}
conditions:
{{ range $type := list "Initialized" "Ready" "ContainersReady" }}
- {type: {{ $type }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
{{ end }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
phase: Running
startTime: {{ $now | Quote }}
"""
_SUCCEEDED = """{{ $now := Now }}
conditions:
{{ range $type := list "Ready" "ContainersReady" }}
- {type: {{ $type }}, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: false
  started: false
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
{{ end }}
phase: Succeeded
"""


@dataclass(frozen=True)
class Simulated:
    """So many nodes with GPUs, called sim-0001 and so on; pods with a label of `ending` succeed after `seconds`."""

    count: int
    gpus: int = 8
    ending: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 1.0


def start_simulated(wanted: Simulated, plane: ControlPlane, folder: Path) -> None:
    """Start kwok beside the control plane, make the nodes, and return when pods can be placed on all of them."""
    configuration = folder / "kwok.json"
    # Documents follow each other; JSON is YAML.
    configuration.write_text("\n---\n".join(json.dumps(stage) for stage in _stages(wanted)))
    kwok = plane.machine.start(
        "kwok",
        program("kwok"),
        f"--kubeconfig={plane.access.by_token('kwok')}",
        f"--config={configuration}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        "--server-address=127.0.0.1:10247",
        "--cidr=10.128.0.0/9",
        # No lease a node: renewing thousands would keep the machine busy. Clusters with such nodes wait long enough.
        "--node-lease-duration-seconds=0",
    )
    nodes = [_node(number, wanted.gpus) for number in range(1, wanted.count + 1)]
    plane.api.create_all("/api/v1/nodes", nodes)
    try:
        _await_ready(plane.api, wanted.count)
    except ClusterError:
        kwok.check()
        raise


def _await_ready(api: Api, count: int) -> None:
    """Wait until so many simulated nodes take pods. By a watch: to list thousands over and over would hold them up."""
    seconds = 60 + count // 10
    ready: set[str] = set()
    for event in api.follow("/api/v1/nodes?labelSelector=type%3Dkwok", seconds):
        if _takes_pods(event["object"]):
            ready.add(event["object"]["metadata"]["name"])
        if len(ready) >= count:
            return
    raise ClusterError(f"waited {seconds} s in vain: {count} simulated nodes, of which {len(ready)} are ready")


def _takes_pods(node: dict[str, Any]) -> bool:
    is_ready = {"type": "Ready", "status": "True"}
    conditions = node["status"].get("conditions", ())
    return not node["spec"].get("taints") and any(is_ready.items() <= one.items() for one in conditions)


def _node(number: int, gpus: int) -> dict[str, Any]:
    name = f"sim-{number:04}"
    has = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    labels = {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {MARK: "fake"}},
        # Ready from the beginning: thousands of nodes are made in half the time if kwok need not say so of each.
        "status": {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _stages(wanted: Simulated) -> list[dict[str, Any]]:
    """Return what happens to a pod in its life."""
    lives = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    is_new = [lives, {"key": ".status.podIP", "operator": "DoesNotExist"}]
    stages = [
        _stage("run", is_new, {"statusTemplate": _RUNNING}),
        _stage(
            "delete",
            [{**lives, "operator": "Exists"}],
            {"finalizers": {"empty": True}, "delete": True},
        ),
    ]
    for number, (label, value) in enumerate(wanted.ending.items()):
        runs = {"key": ".status.phase", "operator": "In", "values": ["Running"]}
        labelled = {"key": f'.metadata.labels["{label}"]', "operator": "In", "values": [value]}
        ended = _stage(f"end-{number}", [lives, runs, labelled], {"statusTemplate": _SUCCEEDED})
        ended["spec"]["delay"] = {"durationMilliseconds": int(wanted.seconds * 1000)}
        stages.append(ended)
    return stages


def _stage(name: str, selects: list[dict[str, Any]], does: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {"matchExpressions": selects},
            "next": does,
        },
    }
