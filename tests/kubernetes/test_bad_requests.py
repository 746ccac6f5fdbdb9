"""Requests that cannot be met, now or ever, are answered with the reason, and hold nothing. Needs root."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import await_all_free, await_job, await_left, remove_job, ronde_job
from laptop import Laptop
from pods import FOREVER, await_phase, remove, shell_pod
from testbed import Cluster

GPU_QUOTA = "requests.nvidia.com/gpu"


def set_quota(cluster: Cluster, namespace: str, gpus: int) -> None:
    """Allow so many GPUs in a namespace."""
    spec = {"hard": {GPU_QUOTA: str(gpus)}}
    about = {"name": "gpus", "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": about, "spec": spec})


@pytest.mark.parametrize(
    ("gpus", "status", "reason"),
    [
        ("0", 2, "a job needs at least 1 GPU, and 0 were asked for; write 1 or more"),
        ("-1", 2, "a job needs at least 1 GPU, and -1 were asked for; write 1 or more"),
        ("six", 2, '"six" is not a number of GPUs; write 6, or 4..8'),
        ("8..4", 2, "8..4 goes down; the fewest come first: 4..8"),
        ("11", 1, "11 GPUs (nvidia.com/gpu) are asked for, and there are only 10, even if nobody used any"),
    ],
)
def test_numbers_that_make_no_sense_are_explained(laptop: Laptop, gpus: str, status: int, reason: str) -> None:
    for verb in (["run", "--image", "any", "--name", "senseless"], ["plan"]):
        command = laptop.start(*verb, "--gpus", gpus, *(["--", "true"] if verb[0] == "run" else []))
        assert command.end() == status
        assert reason in command.said()


def test_a_job_waits_until_gpus_that_others_have_are_free(laptop: Laptop) -> None:
    cluster = laptop.cluster
    cluster.apply(shell_pod("theirs", FOREVER, gpus=5, node="node-1"))
    await_phase(cluster, "theirs", "Running")
    command = laptop.start_run("patient", 6, "true")
    command.await_said("waiting for 1 more GPU")
    assert "node-1 is full" in command.said()
    assert cluster.free_gpus() == {"node-1": 0, "node-2": 3, "node-3": 2}, "who waits has nothing"
    remove(cluster, "theirs")
    assert command.end() == 0, command
    assert "6 GPUs free again" in command.said()


def test_a_job_that_can_never_fit_says_so_and_holds_up_nobody(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.start_controller()
    cluster.apply(ronde_job("huge", 11, "true"))
    waits = await_job(cluster, "huge", "Pending", "NeverEnough")
    assert "11 GPUs (nvidia.com/gpu) are asked for, and there are only 10" in waits["message"]
    cluster.apply(ronde_job("small", 2, "true"))
    await_job(cluster, "small", "Succeeded")
    cluster.kubectl("delete", "rondejob", "huge")
    remove_job(cluster, "small")


def test_a_token_without_rights_is_told_which_are_missing(laptop: Laptop) -> None:
    nobody = laptop.cluster.kubeconfig("nobody")
    for command in (
        laptop.start("plan", "--gpus", 1, kubeconfig=nobody),
        laptop.start_run("forbidden", 1, "true", kubeconfig=nobody),
        laptop.start_controller(kubeconfig=nobody),
    ):
        assert command.end() == 1
        assert 'User "nobody" cannot' in command.said()
        assert "hint: `ronde kube install --print` shows the rights" in command.said()


def test_what_a_token_may_not_create_is_named_and_nothing_is_left(laptop: Laptop) -> None:
    cluster = laptop.cluster
    cluster.kubectl("create", "serviceaccount", "looks-on")
    try:
        cluster.kubectl("create", "clusterrole", "looks-on", "--verb=get,list,watch", "--resource=pods,nodes")
        cluster.kubectl(
            "create", "clusterrolebinding", "looks-on", "--clusterrole=looks-on", "--serviceaccount=default:looks-on"
        )
        command = laptop.start_run("forbidden", 1, "true", kubeconfig=cluster.account_kubeconfig("looks-on"))
        assert command.end() == 1
        assert "not allowed to create the job" in command.said()
        assert 'cannot create resource "configmaps"' in command.said()
    finally:
        cluster.kubectl("delete", "serviceaccount/looks-on", "clusterrole/looks-on", "clusterrolebinding/looks-on")


def test_a_quota_is_named_and_waited_for(laptop: Laptop, namespace: str) -> None:
    cluster = laptop.cluster
    set_quota(cluster, namespace, 5)
    laptop.start_controller()
    # Of 5 + 1 the quota allows either, but not both.
    cluster.apply(ronde_job("limited", 6, "true", namespace))
    waits = await_job(cluster, "limited", "Pending", "QuotaExceeded", namespace=namespace)
    assert "exceeded quota: gpus" in waits["message"]
    await_all_free(cluster)
    await_left(cluster, "rondejobs/limited", namespace=namespace)
    set_quota(cluster, namespace, 6)
    await_job(cluster, "limited", "Succeeded", namespace=namespace)
    remove_job(cluster, "limited", namespace)


def test_the_command_tells_a_quota_with_its_numbers_and_goes_on_when_it_is_raised(
    laptop: Laptop, namespace: str
) -> None:
    set_quota(laptop.cluster, namespace, 5)
    command = laptop.start_run("limited", 6, "true", "--namespace", namespace)
    command.await_said("exceeded quota: gpus")
    # Which of the two pods comes first is left to chance.
    used = rf"requested: {GPU_QUOTA}=[15], used: {GPU_QUOTA}=[15], limited: {GPU_QUOTA}=5"
    assert re.search(used, command.said()), command
    set_quota(laptop.cluster, namespace, 6)
    assert command.end() == 0, command
    assert "6 GPUs free again" in command.said()


def test_a_limit_range_is_told_with_its_numbers_and_a_job_that_keeps_to_it_runs(laptop: Laptop, namespace: str) -> None:
    limits = [{"type": "Pod", "max": {"nvidia.com/gpu": "4"}}]
    about = {"name": "few", "namespace": namespace}
    laptop.cluster.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": about, "spec": {"limits": limits}})
    refused = laptop.start_run("greedy", 6, "true", "--namespace", namespace)
    assert refused.end() == 1, refused
    assert "maximum nvidia.com/gpu usage per Pod is 4, but limit is 5" in refused.said()
    await_left(laptop.cluster, namespace=namespace)
    modest = laptop.start_run("modest", 6, "true", "--namespace", namespace, "--max-gpus-per-node", 4)
    assert modest.end() == 0, modest
    assert "job modest · 6 GPUs · node-1: 4, node-3: 2" in modest.said()


def test_jobs_run_where_pods_are_restricted_and_root_is_refused_with_the_reason(laptop: Laptop, namespace: str) -> None:
    cluster = laptop.cluster
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    allowed = laptop.start_run("modest", 6, "id -u", "--namespace", namespace)
    assert allowed.end() == 0, allowed
    assert "[5] 1000\n" in allowed.output()
    await_left(cluster, namespace=namespace)
    refused = laptop.start_run("root", 6, "id -u", "--namespace", namespace, "--run-as-user", 0)
    assert refused.end() == 1
    assert 'violates PodSecurity "restricted:latest"' in refused.said()
    assert "runAsNonRoot" in refused.said()


def test_a_cluster_without_gpus_says_so(tmp_path: Path) -> None:
    with Cluster([0]) as cluster, Laptop(cluster, tmp_path) as laptop:
        for command in (laptop.start("plan", "--gpus", 1), laptop.start_run("nowhere", 1, "true")):
            assert command.end() == 1
            assert "1 GPU (nvidia.com/gpu) is asked for, and there are none" in command.said()
