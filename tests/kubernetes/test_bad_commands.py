"""Commands whose job fails once, is deleted, is left alone before it starts, or is not where they are. Needs root."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from deployed import TRAINING_IMAGE
from jobs import A_WHILE, ALL_FREE, SLOW_START, UNTIL_ENOUGH, await_all_free, await_left, enough, left
from laptop import Command, Laptop
from pods import FOREVER, await_phase, pod, pods, remove, shell_pod
from testbed import Faults, wait_for

# How long pods may take to start in jobs that never do, and until somebody is sure to have noticed.
START_DEADLINE = 5
PATIENCE = START_DEADLINE + 60 + 60


def test_a_command_with_retries_shows_both_attempts_and_asks_for_their_output_a_few_times(
    laptop: Laptop, faults: Faults
) -> None:
    script = "case $POD_NAME in *-r1) echo second;; *) echo first; exit 3;; esac"
    command = laptop.start_run("tries", 2, script, "--retries", 1, ttl=60, kubeconfig=faults.kubeconfig())
    assert command.end() == 0, command
    assert "kubectl logs tries-chief-r1 (kept 1 m" in command.said(), "the output of the one that ended well"
    laptop.cluster.kubectl("delete", "configmap", "tries")
    assert "attempt 1 of 2 failed: tries-chief on node-3 ended with status 3" in command.said()
    assert "job tries · 2 GPUs · node-3: 2 · attempt 2" in command.said()
    first, second = (command.output().find(f"] {which}\n") for which in ("first", "second"))
    assert 0 <= first < second, command
    assert command.output().count("] second\n") == 2, command
    asked = [request.path for request in faults.requests() if "/log?" in request.path]
    assert 2 <= len(asked) < 20, f"{len(asked)} times: {asked[:30]}"


# What a command says at a moment of its job's life.
MOMENTS = {"waits": "waiting for 1 more GPU", "starts": "✓ scheduled", "runs": "✓ started"}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_command_whose_job_is_deleted_says_so_and_leaves_nothing(laptop: Laptop, tmp_path: Path, moment: str) -> None:
    cluster = laptop.cluster
    template = tmp_path / "template.json"
    template.write_text(json.dumps(SLOW_START if moment == "starts" else {"metadata": {}}))
    if moment == "waits":
        cluster.apply(shell_pod("theirs", FOREVER, gpus=5, node="node-1"))
        await_phase(cluster, "theirs", "Running")
    command = laptop.start_run("deleted", 6, f"exec {FOREVER}", "--template", template)
    command.await_said(MOMENTS[moment])
    cluster.kubectl("delete", "configmap", "deleted")
    assert command.end() != 0, command
    assert re.search(r"^error: .*\bwas deleted\b", command.said(), re.MULTILINE), command
    remove(cluster, "theirs")
    await_left(cluster)
    await_all_free(cluster)


def orphan(laptop: Laptop, image: str, *flags: object) -> None:
    """Have a command killed when its pods have their places, and before they have all started."""
    about = ["--gpus", 6, "--image", image, "--name", "orphan", "--ttl", 0, "--start-deadline", START_DEADLINE]
    command = laptop.start("run", *about, *flags, "--", *FOREVER.split())
    command.await_said("✓ scheduled")
    command.kill()
    assert laptop.cluster.free_gpus() == {**ALL_FREE, "node-1": 0, "node-3": 1}, "nobody else would know yet"


def test_what_never_starts_and_whose_command_was_killed_is_cleared_away_by_a_later_command(laptop: Laptop) -> None:
    cluster = laptop.cluster
    orphan(laptop, "ronde.test/none:1")
    numbers = itertools.count()

    def are_free_after_another() -> bool:
        another = laptop.start_run(f"later-{next(numbers)}", 1, A_WHILE)
        assert another.end() == 0, another
        return cluster.free_gpus() == ALL_FREE

    wait_for("a command to clear it away", are_free_after_another, PATIENCE)
    await_left(cluster)


def test_a_worker_that_never_starts_and_whose_command_was_killed_is_cleared_away_by_the_controller(
    laptop: Laptop, tmp_path: Path
) -> None:
    cluster = laptop.cluster
    # The chief's node has this folder, and the worker's has not.
    folder = "/run/only-here"
    cluster.nodes["node-3"].machine.run_inside("mkdir", "--parents", folder)
    volume = {"name": "here", "hostPath": {"path": folder, "type": "Directory"}}
    container = {"name": "train", "volumeMounts": [{"name": "here", "mountPath": "/here"}]}
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"spec": {"containers": [container], "volumes": [volume]}}))
    orphan(laptop, TRAINING_IMAGE, "--template", template)
    laptop.start_controller()
    await_all_free(cluster, seconds=PATIENCE)
    await_left(cluster)
    cluster.nodes["node-3"].machine.run_inside("rmdir", folder)


def in_pod(laptop: Laptop, namespace: str, owner: dict[str, Any]) -> Command:
    """Start a command as in this pod, for a job of another namespace."""
    own = {"POD_NAME": owner["name"], "POD_UID": owner["uid"], "POD_NAMESPACE": owner["namespace"]}
    about = ["--gpus", 6, "--image", TRAINING_IMAGE, "--name", "abroad", "--ttl", 0, "--namespace", namespace]
    return laptop.start("run", *about, "--", "sh", "-c", UNTIL_ENOUGH, **own)


def test_a_job_in_another_namespace_than_its_commands_pod_belongs_to_a_config_map_there(
    laptop: Laptop, namespace: str
) -> None:
    cluster = laptop.cluster
    # It is there only to be the pod that the command is in, so it never runs.
    cluster.apply(shell_pod("inside", "true", schedulingGates=[{"name": "ronde.test/never"}]))
    command = in_pod(laptop, namespace, pod(cluster, "inside")["metadata"])
    command.await_said("✓ started")
    assert "configmaps/abroad" in left(cluster, namespace)
    owners = [one for about in pods(cluster, namespace).values() for one in about["metadata"]["ownerReferences"]]
    assert {(one["kind"], one["name"]) for one in owners} == {("ConfigMap", "abroad")}
    enough(cluster, "abroad", namespace)
    # What belongs to nobody of its own namespace is deleted within moments.
    assert command.end() == 0, command
    assert "6 GPUs free again" in command.said()
    remove(cluster, "inside")
    await_left(cluster, namespace=namespace)
