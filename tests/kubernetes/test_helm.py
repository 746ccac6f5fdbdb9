"""The Helm chart and the examples of deploy/kubernetes, with the real Helm and a real cluster. Needs root."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from building import ROOT
from deployed import MANAGER_IMAGE, MANIFESTS, TRAINING_IMAGE, deployed_images
from jobs import await_definitions
from laptop import RONDE
from manifests import objects, objects_of
from testbed import Cluster, wait_for
from testbed.layout import program

CHART = MANIFESTS / "chart"
EXAMPLES = sorted((MANIFESTS / "examples").glob("*.yaml"))
PLACE = ["--namespace", "ronde-system"]
VERSION = ["--kube-version", "1.34.4"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster([2, 1], images=[deployed_images()]) as cluster:
        yield cluster


def helm(cluster: Cluster, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Helm with the cluster's kubeconfig, and files of its own in the cluster's folder."""
    folders = {f"HELM_{kind}_HOME": str(cluster.folder / "helm" / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    command = [str(word) for word in [program("helm"), *words]]
    environment = {**os.environ, **cluster.environment(), **folders}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def rendered(cluster: Cluster, *words: object) -> str:
    done = helm(cluster, "template", "ronde", CHART, *PLACE, *VERSION, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_name(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_the_chart_renders_the_objects_that_the_program_installs(cluster: Cluster) -> None:
    installed = by_name(objects(cluster, MANIFESTS / "manager.yaml"))
    # Helm makes the namespace itself, if it is asked to.
    del installed["Namespace", "ronde-system"]
    chart = by_name(objects_of(cluster, rendered(cluster)))
    annotations = chart["CustomResourceDefinition", "rondejobs.ronde.dev"]["metadata"].pop("annotations")
    assert annotations == {"helm.sh/resource-policy": "keep"}
    assert sorted(chart) == sorted(installed)
    for name, one in installed.items():
        assert chart[name] == one, name


def test_the_chart_is_as_helm_wants_it_and_has_the_programs_version(cluster: Cluster) -> None:
    linted = helm(cluster, "lint", "--strict", *VERSION, CHART)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    version = subprocess.run([RONDE, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
    about = helm(cluster, "show", "chart", CHART).stdout.splitlines()
    assert f"version: {version}" in about
    assert f"appVersion: {version}" in about


def test_every_option_is_where_it_belongs(cluster: Cluster) -> None:
    chosen = {
        "image.repository": "registry.example/ronde",
        "image.tag": "v7",
        "image.pullPolicy": "Always",
        "imagePullSecrets[0].name": "mine",
        "replicas": "2",
        "resources.limits.memory": "1Gi",
        "nodeSelector.pool": "system",
        "tolerations[0].key": "system",
        "podLabels.team": "a",
        "podAnnotations.note": "b",
        "priorityClassName": "system-cluster-critical",
        "serviceAccount.name": "other",
        "clusterDomain": "example.internal",
        "holdAfterSeconds": "0",
        "extraArgs[0]": "--quiet",
        "installCRDs": "false",
        "metrics.service.enabled": "true",
    }
    words = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    found = by_name(objects_of(cluster, rendered(cluster, *words)))
    assert ("CustomResourceDefinition", "rondejobs.ronde.dev") not in found
    assert ("ServiceAccount", "other") in found
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        assert found[kind, "ronde-manager"]["subjects"][0]["name"] == "other"
    assert found["Service", "ronde-manager-metrics"]["spec"]["ports"][0]["targetPort"] == "http"
    spec = found["Deployment", "ronde-manager"]["spec"]
    assert spec["replicas"] == 2
    labels = {"app.kubernetes.io/name": "ronde-manager", "team": "a"}
    assert spec["template"]["metadata"] == {"labels": labels, "annotations": {"note": "b"}}
    pod = spec["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "mine"}]
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "system"}, [{"key": "system"}])
    assert pod["serviceAccountName"] == "other"
    assert pod["priorityClassName"] == "system-cluster-critical"
    (container,) = pod["containers"]
    image = "registry.example/ronde:v7"
    assert (container["image"], container["imagePullPolicy"]) == (image, "Always")
    given = ["--manager-image", image, "--cluster-domain", "example.internal", "--hold-after", "0", "--quiet"]
    assert container["args"] == given
    assert container["resources"]["limits"] == {"memory": "1Gi"}


def test_a_monitor_brings_its_service_and_the_definition_need_not_stay(cluster: Cluster) -> None:
    text = rendered(cluster, "--set", "metrics.serviceMonitor.enabled=true", "--set", "keepCRDs=false")
    assert "kind: ServiceMonitor\n" in text
    assert "name: ronde-manager-metrics\n" in text
    assert "resource-policy" not in text


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("replicas=many", "replicas"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("replica=2", "replica"),
        ("holdAfterSeconds=-1", "holdAfterSeconds"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(cluster: Cluster, setting: str, named: str) -> None:
    done = helm(cluster, "template", "ronde", CHART, *VERSION, "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr


def asked(cluster: Cluster, path: str) -> str:
    """Return what the manager answers through the chart's service."""
    service = "/api/v1/namespaces/ronde-system/services/ronde-manager-metrics:http"
    return cluster.kubectl("get", "--raw", f"{service}/proxy/{path}")


def assert_figures(cluster: Cluster) -> None:
    """Check that the manager says how it is, with the figures of the documentation, after one job on all GPUs."""
    assert (asked(cluster, "healthz"), asked(cluster, "readyz")) == ("ok\n", "ok\n")
    # GPUs are counted every few seconds.
    free = 'ronde_gpus_free{resource="nvidia.com/gpu"} 3\n'
    wait_for(lambda: asked(cluster, "metrics"), lambda: free in asked(cluster, "metrics"))
    page = asked(cluster, "metrics")
    documented = re.findall(r"`(ronde_\w+)", (ROOT / "docs" / "kubernetes.md").read_text())
    assert sorted(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE)) == sorted(documented)
    for line in (
        'ronde_jobs{phase="Succeeded"} 1',
        'ronde_jobs{phase="Running"} 0',
        'ronde_gpus{resource="nvidia.com/gpu"} 3',
        "ronde_queue_wait_seconds_count 1",
        "ronde_leader 1",
    ):
        assert f"\n{line}\n" in page, page
    assert re.search(r'^ronde_api_requests_total{code="201"} [1-9]', page, re.MULTILINE), page
    assert re.search(r"^ronde_rounds_total [1-9]", page, re.MULTILINE), page


def test_helm_installs_it_a_job_runs_and_helm_takes_it_away(cluster: Cluster) -> None:
    repository, _, tag = MANAGER_IMAGE.partition(":")
    chosen = {"image.repository": repository, "image.tag": tag, "metrics.service.enabled": "true"}
    values = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    done = helm(cluster, "install", "ronde", CHART, *PLACE, "--create-namespace", "--wait", "--timeout=90s", *values)
    assert done.returncode == 0, done.stderr
    assert "kubectl logs first-chief" in done.stdout

    job = {"gpus": 3, "image": TRAINING_IMAGE, "command": ["echo", "hello"]}
    api = {"apiVersion": "ronde.dev/v1alpha1", "kind": "RondeJob", "metadata": {"name": "first"}}
    cluster.apply({**api, "spec": job})
    path = "/apis/ronde.dev/v1alpha1/namespaces/default/rondejobs/first"
    final = ("Succeeded", "Failed")
    status = wait_for(
        "the job to end", lambda: (now := cluster.get(path).get("status", {})).get("phase") in final and now
    )
    assert status["phase"] == "Succeeded", status
    assert "[2] hello" in cluster.kubectl("logs", "first-chief")
    assert_figures(cluster)

    again = helm(cluster, "upgrade", "ronde", CHART, *PLACE, *values, "--set", "replicas=2", "--wait", "--timeout=90s")
    assert again.returncode == 0, again.stderr
    gone = helm(cluster, "uninstall", "ronde", *PLACE, "--wait")
    assert gone.returncode == 0, gone.stderr
    left = cluster.kubectl("get", "all,roles,rolebindings,serviceaccounts", *PLACE, "--output=name").split()
    assert [name for name in left if "ronde-manager" in name and not name.startswith("pod/")] == []
    assert "ronde-manager" not in cluster.kubectl("get", "clusterroles,clusterrolebindings", "--output=name")
    # Jobs, and what they printed, are the users' and stay.
    assert "[2] hello" in cluster.kubectl("logs", "first-chief")
    cluster.kubectl("delete", "rondejob", "first")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_api_server_would_take_the_example(cluster: Cluster, example: Path) -> None:
    definition = [one for one in objects(cluster, MANIFESTS / "manager.yaml") if one["kind"].startswith("Custom")]
    cluster.apply(*definition)
    await_definitions(cluster)
    cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "--filename", example)
    # The server takes any template of a job; a pod of it has to be one.
    for one in objects(cluster, example):
        template = one.get("spec", {}).get("template")
        if one["kind"] == "RondeJob" and template:
            template["spec"]["containers"][0]["image"] = one["spec"]["image"]
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": template["spec"]}
            made = cluster.control_plane.api.request(
                "POST", "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict", pod
            )
            assert made[0] == 201, made[1]
