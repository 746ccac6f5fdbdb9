"""The accounts of the manifests hold the rights that they need, each of them, and no others. Needs root.

Both lists are written down here. The manifests give exactly these, and so says the API server; none goes beyond what is
promised to those who look after clusters. Then each right is taken away: the controller and the command run as their
accounts, outside of pods to be quick, take a job through its whole life, and what their users see must name the right
that lacks.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deployed import MANIFESTS, TRAINING_IMAGE, deployed_images
from jobs import await_definitions
from laptop import RONDE, known
from manifests import objects
from rights import Right, await_right, held, of_rules, rights, roles, without
from testbed import Cluster, ClusterError, wait_for

COUNTING = rights({"nodes": "list watch", "pods": "list watch"})
JOBS = rights(
    {
        "pods": "create get patch delete",
        "services": "create get delete",
        "configmaps": "create get delete",
        "secrets": "create delete",
    }
)
# The controller alone tells of jobs in events and in their status; the command shows the output instead.
TELLING = rights({"events": "create", "rondejobs.ronde.dev": "list watch", "rondejobs.ronde.dev/status": "patch"})
SHOWING = rights({"pods/log": "get"})
LEADING = rights({"leases.coordination.k8s.io": "get create update"})

CONTROLLER = COUNTING | JOBS | TELLING | LEADING
COMMAND = COUNTING | JOBS | SHOWING

# The most that was promised.
PROMISED_CLUSTER_WIDE = rights({"nodes": "get list watch", "pods": "list watch"})
PROMISED_FOR_JOBS = rights(
    {
        "pods": "create get patch delete",
        "pods/log": "get",
        "services": "create get delete",
        "configmaps": "create get delete",
        "secrets": "create delete",
        "events": "create",
        "rondejobs.ronde.dev": "get list watch",
        "rondejobs.ronde.dev/status": "patch",
    }
)

numbers = itertools.count()


def new_name() -> str:
    """Return a name that no job had: what an earlier one has left is in nobody's way."""
    return f"job-{next(numbers)}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Enough GPUs for what an earlier job may still hold while it goes.
    with Cluster([16, 16], images=[deployed_images()]) as cluster:
        installed = [one for one in objects(cluster, MANIFESTS / "manager.yaml") if one["kind"] != "Deployment"]
        cluster.apply(*installed)
        await_definitions(cluster)
        cluster.apply(*[one for one in objects(cluster, MANIFESTS / "run.yaml") if one["kind"] != "Pod"])
        yield cluster


def by_kind(cluster: Cluster, file: str) -> dict[str, set[Right]]:
    """Return what the roles of a manifest give, by kind of role."""
    return {role["kind"]: of_rules(role["rules"]) for role in roles(objects(cluster, MANIFESTS / file))}


def test_the_manifests_give_these_rights_which_are_no_more_than_was_promised(cluster: Cluster) -> None:
    controller = by_kind(cluster, "manager.yaml")
    assert controller == {"ClusterRole": COUNTING | JOBS | TELLING, "Role": LEADING}
    command = by_kind(cluster, "run.yaml")
    assert command == {"ClusterRole": COUNTING, "Role": JOBS | SHOWING}
    assert controller["ClusterRole"] <= PROMISED_CLUSTER_WIDE | PROMISED_FOR_JOBS
    assert command["ClusterRole"] <= PROMISED_CLUSTER_WIDE
    assert command["Role"] <= PROMISED_FOR_JOBS


def test_the_server_lets_the_accounts_do_this_and_nothing_else(cluster: Cluster) -> None:
    def controller(namespace: str) -> set[Right]:
        return held(cluster, "ronde-manager", "ronde-system", namespace)

    assert controller("ronde-system") == CONTROLLER
    assert controller("default") == CONTROLLER - LEADING
    assert held(cluster, "ronde-run", "default", "default") == COMMAND
    assert held(cluster, "ronde-run", "default", "kube-system") == COUNTING


@contextmanager
def lacking(cluster: Cluster, file: str, account: str, right: Right) -> Iterator[None]:
    """Take a right away for a while."""
    affected = [role for role in roles(objects(cluster, MANIFESTS / file)) if right in of_rules(role["rules"])]
    namespace = account.split(":")[0] if right in LEADING else "default"
    cluster.apply(*[without(role, right) for role in affected])
    try:
        await_right(cluster, account, right, namespace, allowed=False)
        yield
    finally:
        cluster.apply(*affected)
        await_right(cluster, account, right, namespace, allowed=True)


@contextmanager
def taken(cluster: Cluster, job: str, right: Right) -> Iterator[None]:
    """Where the right is to look at something: have somebody else take a name that the job needs, so that it must."""
    # Nothing runs: the pod is kept from being placed.
    pod = {"schedulingGates": [{"name": "ronde.dev/test"}], "containers": [{"name": "none", "image": TRAINING_IMAGE}]}
    others = {
        "pods": ("Pod", f"{job}-chief", {"spec": pod}),
        "services": ("Service", job, {"spec": {"clusterIP": "None"}}),
        "configmaps": ("ConfigMap", f"{job}-plan", {}),
    }
    if right.verb != "get" or right.resource not in others:
        yield
        return
    kind, name, content = others[right.resource]
    cluster.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **content})
    yield
    cluster.kubectl("delete", kind, name, "--wait=false")


def environment(kubeconfig: Path) -> dict[str, str]:
    return {**os.environ, **known(kubeconfig)}


class Attempt:
    """A job that a controller takes through its life, and all that can be read about it."""

    def __init__(self, cluster: Cluster, name: str, log: Path) -> None:
        self.cluster = cluster
        self.name = name
        self.log = log
        spec = {
            "gpus": 2,
            "maxGpusPerNode": 1,
            "image": TRAINING_IMAGE,
            "command": ["true"],
            "ttlSecondsAfterFinished": 0,
        }
        job = {"apiVersion": "ronde.dev/v1alpha1", "kind": "RondeJob", "metadata": {"name": self.name}, "spec": spec}
        api = cluster.control_plane.api
        self.path = "/apis/ronde.dev/v1alpha1/namespaces/default/rondejobs"
        self.uid = api.create(self.path, job)["metadata"]["uid"]

    def __enter__(self) -> Attempt:
        account = self.cluster.account_kubeconfig("ronde-manager", "ronde-system")
        command = [RONDE, "kube", "manager", "--listen", "127.0.0.1:0"]
        with self.log.open("w") as log:
            self._controller = subprocess.Popen(command, env=environment(account), stdout=log, stderr=log)
        return self

    def __exit__(self, *_error: object) -> None:
        self._controller.terminate()
        self._controller.wait(30)
        self.cluster.kubectl("delete", "rondejob", self.name, "--wait=false")

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.cluster.get(f"{self.path}/{self.name}").get("status", {})
        return status

    def said(self) -> str:
        """Return what the job's user and the controller's can read: status, events, log."""
        chosen = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={self.name}"
        events = [event["message"] for event in self.cluster.get(chosen)["items"]]
        return "\n".join([self.log.read_text(), self.status().get("message", ""), *events])

    def is_gone(self) -> bool:
        """Whether nothing is left besides the job itself."""
        kinds = ("pods", "services", "configmaps", "secrets")
        chosen = f"?labelSelector=ronde.dev/job-uid={self.uid}"
        return not any(self.cluster.get(f"/api/v1/namespaces/default/{kind}{chosen}")["items"] for kind in kinds)


def test_with_all_rights_the_controller_has_nothing_to_complain_of(cluster: Cluster, tmp_path: Path) -> None:
    with Attempt(cluster, new_name(), tmp_path / "log") as attempt:
        wait_for("the job to end", lambda: attempt.status().get("phase") == "Succeeded")
        wait_for("nothing to be left of it", attempt.is_gone)
        assert "cannot" not in attempt.said()


@pytest.mark.parametrize("right", sorted(CONTROLLER), ids=str)
def test_the_controller_needs_the_right_to(cluster: Cluster, tmp_path: Path, right: Right) -> None:
    if right == Right("create", "leases", "coordination.k8s.io"):
        # Otherwise it only has to be taken over.
        cluster.kubectl("delete", "lease", "ronde-manager", "--namespace=ronde-system", "--ignore-not-found")
    name = new_name()
    with (
        lacking(cluster, "manager.yaml", "ronde-system:ronde-manager", right),
        taken(cluster, name, right),
        Attempt(cluster, name, tmp_path / "log") as attempt,
    ):
        try:
            wait_for(f"somebody to say: {right.refusal}", lambda: right.refusal in attempt.said())
        except ClusterError as error:
            pytest.fail(f"{error}; what was said:\n{attempt.said()}\n{attempt.status()}")
        print(next(line for line in attempt.said().splitlines() if right.refusal in line))


def run_command(cluster: Cluster, name: str, until: str = "") -> tuple[int, str]:
    """Run a job as the pod of run.yaml does, as its account and belonging to a pod: to its end, or until it says this.

    Returns its status and all that was said.
    """
    # It is there only to own what is made, so it never runs.
    spec = {"schedulingGates": [{"name": "ronde.dev/test"}], "containers": [{"name": "none", "image": TRAINING_IMAGE}]}
    owner = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    uid = cluster.control_plane.api.create("/api/v1/namespaces/default/pods", owner)["metadata"]["uid"]
    own = {"POD_NAME": name, "POD_UID": uid, "POD_NAMESPACE": "default"}
    gpus = ["--gpus", "2", "--max-gpus-per-node", "1"]
    command = [RONDE, "kube", "run", *gpus, "--ttl", "0", "--image", TRAINING_IMAGE, "--", "echo", "hello"]
    account = {**environment(cluster.account_kubeconfig("ronde-run")), **own}
    said = ""
    with subprocess.Popen(command, env=account, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        limit = threading.Timer(90, run.kill)
        limit.start()
        for line in run.stdout:
            said += line
            if until and until in line:
                run.kill()
        limit.cancel()
    cluster.kubectl("delete", "pod", name, "--wait=false")
    return run.returncode, said


def test_with_all_rights_the_command_has_nothing_to_complain_of(cluster: Cluster) -> None:
    status, said = run_command(cluster, new_name())
    assert status == 0, said
    assert "[0] hello" in said
    assert "cannot" not in said


@pytest.mark.parametrize("right", sorted(COMMAND), ids=str)
def test_the_command_needs_the_right_to(cluster: Cluster, right: Right) -> None:
    name = new_name()
    with lacking(cluster, "run.yaml", "default:ronde-run", right), taken(cluster, name, right):
        _, said = run_command(cluster, name, until=right.refusal)
    assert right.refusal in said, said
    print(next(line for line in said.splitlines() if right.refusal in line))
