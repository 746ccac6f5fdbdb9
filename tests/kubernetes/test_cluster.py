"""The test cluster does what clusters do, so that a test that fails on it has found something. Needs root."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import ALL_FREE
from pods import FOREVER, await_phase, log, output, pod, remove, shell_pod, until
from testbed import Cluster, ClusterError, wait_for


def test_nodes_are_ready_with_their_gpus(cluster: Cluster) -> None:
    nodes = {node["metadata"]["name"]: node["status"] for node in cluster.get("/api/v1/nodes")["items"]}
    assert {name: int(status["capacity"]["nvidia.com/gpu"]) for name, status in nodes.items()} == ALL_FREE
    for status in nodes.values():
        conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
        assert conditions == {
            "Ready": "True",
            "MemoryPressure": "False",
            "DiskPressure": "False",
            "PIDPressure": "False",
        }
    assert {status["capacity"]["cpu"] for status in nodes.values()} == {"64"}
    assert len({status["addresses"][0]["address"] for status in nodes.values()}) == 3


def test_a_pod_gets_gpus_which_are_counted_until_it_is_gone(cluster: Cluster) -> None:
    assert cluster.free_gpus() == ALL_FREE
    cluster.apply(shell_pod("trains", f"echo got $NVIDIA_VISIBLE_DEVICES; {FOREVER}", gpus=2, node="node-2"))
    assert await_phase(cluster, "trains", "Running")["spec"]["nodeName"] == "node-2"
    assert cluster.free_gpus() == {**ALL_FREE, "node-2": 1}
    # The container runs before its first line is there to be read.
    line = wait_for("the pod's output", lambda: log(cluster, "trains"))
    devices = line.removeprefix("got ").strip().split(",")
    assert len(set(devices)) == 2
    assert all(device.startswith("GPU-pretended-") for device in devices)
    remove(cluster, "trains")
    assert cluster.free_gpus() == ALL_FREE


def test_a_pod_waits_for_gpus_that_others_have(cluster: Cluster) -> None:
    cluster.apply(shell_pod("first", FOREVER, gpus=4))
    await_phase(cluster, "first", "Running")
    cluster.apply(shell_pod("second", "true", gpus=4))

    def refused() -> str | None:
        conditions = pod(cluster, "second")["status"].get("conditions", [])
        return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), None)

    assert "3 Insufficient nvidia.com/gpu" in wait_for("the scheduler's reason", refused)
    remove(cluster, "first")
    await_phase(cluster, "second", "Succeeded")
    remove(cluster, "second")


def headless_service(name: str) -> dict[str, Any]:
    """Describe a service whose pods are found by name, also before they are ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job": name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def test_pods_of_different_nodes_find_each_other_by_name_before_they_are_ready(cluster: Cluster) -> None:
    never_ready = {"readinessProbe": {"exec": {"command": ["false"]}}}
    script = "mkdir /tmp/www; echo hello from $(hostname) >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"
    chief = shell_pod(
        "chief",
        script,
        node="node-1",
        hostname="chief",
        subdomain="meeting",
        labels={"job": "meeting"},
        container=never_ready,
    )
    cluster.apply(headless_service("meeting"), chief)
    await_phase(cluster, "chief", "Running")
    # A name that was asked for too early stays unknown for as long as the cache keeps it.
    slices = (
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name=meeting"
    )
    wait_for("the chief's address", lambda: any(one.get("endpoints") for one in cluster.get(slices)["items"]))
    ask = until("wget -q -O - http://chief.meeting.default.svc.cluster.local.:8080/")
    assert output(cluster, shell_pod("worker", ask, node="node-2")) == "hello from chief\n"
    ready = {one["type"]: one["status"] for one in pod(cluster, "chief")["status"]["conditions"]}["Ready"]
    assert ready == "False", "it was to be found although it is not ready"
    remove(cluster, "chief")
    cluster.kubectl("delete", "service", "meeting")


def test_a_pod_reaches_the_api_server_as_its_service_account(cluster: Cluster) -> None:
    account = "--serviceaccount=default:default"
    cluster.kubectl("create", "rolebinding", "reads-pods", "--clusterrole=view", account)
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    header = f'--header "Authorization: Bearer $(cat {place}/token)"'
    url = "https://kubernetes.default.svc/api/v1/namespaces/default/pods/asks"
    script = f"ls {place}; {until(f'wget -q --no-check-certificate -O - {header} {url}')}"
    printed = output(cluster, shell_pod("asks", script))
    assert printed.split()[:3] == ["ca.crt", "namespace", "token"]
    assert '"name": "asks"' in printed
    cluster.kubectl("delete", "rolebinding", "reads-pods")


def test_a_pod_that_takes_too_much_memory_is_killed_and_says_why(cluster: Cluster) -> None:
    cluster.apply(shell_pod("greedy", "exec dd if=/dev/zero of=/dev/null bs=200M count=1", memory="32Mi"))
    status = await_phase(cluster, "greedy", "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (status["reason"], status["exitCode"]) == ("OOMKilled", 137)
    remove(cluster, "greedy")


def test_commands_run_in_containers(cluster: Cluster) -> None:
    cluster.apply(shell_pod("stays", FOREVER))
    await_phase(cluster, "stays", "Running")
    assert cluster.kubectl("exec", "stays", "--", "echo", "inside") == "inside\n"
    remove(cluster, "stays")


def test_an_image_that_nobody_has_is_refused_at_once(cluster: Cluster) -> None:
    cluster.apply(shell_pod("strange", "true", container={"image": "ronde.test/missing:1"}))

    def waiting() -> str | None:
        states = pod(cluster, "strange")["status"].get("containerStatuses", [])
        return next((one["state"]["waiting"]["reason"] for one in states if "waiting" in one["state"]), None)

    wait_for("the refusal", lambda: waiting() in ("ErrImagePull", "ImagePullBackOff"))
    remove(cluster, "strange")


def test_a_user_without_rights_may_do_nothing(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match='User "nobody" cannot list resource "pods"'):
        cluster.kubectl("get", "pods", user="nobody")


def test_a_service_accounts_rights_can_be_had_outside_of_its_pods(cluster: Cluster) -> None:
    config = cluster.account_kubeconfig("default")
    who = ["auth", "whoami", "--output=jsonpath={.status.userInfo.username}", f"--kubeconfig={config}"]
    assert cluster.kubectl(*who) == "system:serviceaccount:default:default"


def test_the_api_server_restarts_and_knows_everything(cluster: Cluster) -> None:
    cluster.apply(shell_pod("outlives", FOREVER, gpus=1))
    uid = await_phase(cluster, "outlives", "Running")["metadata"]["uid"]
    cluster.restart_api_server()
    assert pod(cluster, "outlives")["metadata"]["uid"] == uid
    assert output(cluster, shell_pod("later", "echo done")) == "done\n"
    remove(cluster, "outlives")
    assert cluster.free_gpus() == ALL_FREE
