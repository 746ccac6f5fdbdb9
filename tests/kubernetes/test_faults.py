"""The API server with bad days has exactly those that are asked for. Needs root."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from pods import output, shell_pod, until
from testbed import Cluster, Fault, Faults, wait_for
from testbed.access import Api


@pytest.fixture
def faults(cluster: Cluster) -> Iterator[Faults]:
    with cluster.faults() as faults:
        yield faults


@pytest.fixture
def api(cluster: Cluster, faults: Faults) -> Api:
    """Return the API server as it is seen through the faults."""
    plane = cluster.control_plane
    return Api(faults.port, plane.access.token("admin"), plane.authority.certificate.file)


MAPS = "/api/v1/namespaces/default/configmaps"


def config_map(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def test_requests_pass_and_are_recorded(cluster: Cluster, faults: Faults) -> None:
    assert "node-1" in cluster.kubectl("get", "nodes", f"--kubeconfig={faults.kubeconfig()}")
    asked = [request for request in faults.requests() if request.path.startswith("/api/v1/nodes")]
    assert [(request.method, request.status, request.hit) for request in asked] == [("GET", 200, False)]
    assert asked[0].agent.startswith("kubectl/")
    faults.forget()
    assert faults.requests() == []


def test_only_the_requests_that_are_meant_are_refused(api: Api, faults: Faults) -> None:
    faults.set(Fault(methods=["GET"], path="^/api/v1/nodes$", skip=1, times=2, status=429, retry_after=3))
    statuses = [api.request("GET", "/api/v1/nodes")[0] for _ in range(4)]
    assert statuses == [200, 429, 429, 200]
    assert api.request("GET", "/api/v1/pods")[0] == 200
    faults.set(Fault(status=500, path="/nodes"))
    status, text = api.request("GET", "/api/v1/nodes")
    assert status == 500
    assert '"reason":"InternalError"' in text
    faults.set()
    assert api.request("GET", "/api/v1/nodes")[0] == 200


def test_answers_come_late(api: Api, faults: Faults) -> None:
    faults.set(Fault(path="/nodes", delay=0.5))
    began = time.monotonic()
    assert api.request("GET", "/api/v1/nodes")[0] == 200
    assert time.monotonic() - began >= 0.5


def test_an_answer_is_lost_after_the_work_was_done(cluster: Cluster, api: Api, faults: Faults) -> None:
    faults.set(Fault(methods=["POST"], path="/configmaps", times=1, lose_answer=True))
    assert api.request("POST", MAPS, config_map("unheard"))[0] == 0
    assert cluster.get(f"{MAPS}/unheard")["metadata"]["name"] == "unheard"
    assert api.request("POST", MAPS, config_map("unheard"))[0] == 409
    cluster.kubectl("delete", "configmap", "unheard")


def test_an_answer_is_held_until_a_test_has_done_what_it_wants(cluster: Cluster, api: Api, faults: Faults) -> None:
    faults.set(Fault(methods=["POST"], path="/configmaps", hold=True))
    statuses: list[int] = []
    client = threading.Thread(target=lambda: statuses.append(api.request("POST", MAPS, config_map("held"))[0]))
    client.start()
    wait_for("the request to be held", lambda: faults.held() == 1)
    assert cluster.get(f"{MAPS}/held")["metadata"]["name"] == "held"
    assert statuses == []
    faults.release()
    client.join()
    assert statuses == [0]
    cluster.kubectl("delete", "configmap", "held")


def test_watches_pass_event_by_event(cluster: Cluster, faults: Faults) -> None:
    words = ["get", "configmaps", "--watch-only", "--output=name", f"--kubeconfig={faults.kubeconfig()}"]
    with subprocess.Popen(cluster.kubectl_words(*words), stdout=subprocess.PIPE, text=True) as watching:
        wait_for("the watch", lambda: any("watch=true" in request.path for request in faults.requests()))
        cluster.kubectl("create", "configmap", "seen")
        assert watching.stdout is not None
        assert watching.stdout.readline() == "configmap/seen\n"
        watching.kill()
    cluster.kubectl("delete", "configmap", "seen")


def test_pods_have_the_bad_days_too(cluster: Cluster, faults: Faults) -> None:
    faults.serve_pods()
    url = "https://kubernetes.default.svc/readyz"
    script = until(f"wget -q --no-check-certificate -O - {url}")
    faults.set(Fault(path="/readyz", times=1, status=503))

    def through() -> bool:
        output(cluster, shell_pod("asks", script))
        return any(request.hit for request in faults.requests())

    # kube-proxy takes a moment to lead them here.
    wait_for("a pod's request to come here", through)
