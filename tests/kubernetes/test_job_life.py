"""What becomes of pods, names and logs when a job does not go as it should. Needs root.

Whatever happens: a reason is said, all GPUs are free afterwards, and what is kept is what the last line says.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from deployed import TRAINING_IMAGE
from laptop import prepare_for_controllers, ronde_kube
from pods import FOREVER, await_nothing_left, await_only_pods, log, pod, shell_pod
from testbed import SHELL_IMAGE, Cluster, wait_for

pytestmark = pytest.mark.usefixtures("everything_is_given_back")


@pytest.fixture(scope="module")
def cluster(job_cluster: Cluster) -> Cluster:
    return job_cluster


def run(cluster: Cluster, name: str, script: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a line of shell as each of six ranks."""
    options = ["--gpus", 6, "--image", TRAINING_IMAGE, "--name", name, *words]
    return ronde_kube(cluster, "run", *options, "--", "sh", "-c", script)


def delete(cluster: Cluster, name: str) -> None:
    """Delete a job, and wait until nothing is left of it."""
    cluster.kubectl("delete", "configmap", name)
    await_nothing_left(cluster)


def test_a_container_that_does_not_end_keeps_no_gpu_and_takes_no_logs_along(cluster: Cluster, tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text(
        "spec:\n"
        "  containers:\n"
        # What runs in it is said on the command line.
        "  - name: train\n"
        "    command: [echo]\n"
        "    args: ['something else']\n"
        "  - name: logger\n"
        f"    image: {SHELL_IMAGE}\n"
        "    command: [sleep, '3600']\n"  # sleep: is there until it is killed
    )
    ended = run(cluster, "beside", "echo trained", "--template", template)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("trained") == 6, ended.stdout
    assert "kubectl logs beside-chief (kept 1 h)" in ended.stderr
    await_only_pods(cluster, "beside-chief")
    wait_for("the pod to end", lambda: pod(cluster, "beside-chief")["status"]["phase"] == "Failed")
    statuses = pod(cluster, "beside-chief")["status"]["containerStatuses"]
    (code,) = [one["state"]["terminated"]["exitCode"] for one in statuses if one["name"] == "train"]
    assert code == 0
    assert "trained" in cluster.kubectl("logs", "beside-chief", "--container=train")
    # To another manager it has ended well, too.
    again = run(cluster, "beside", "echo trained", "--template", template)
    assert again.returncode == 0, again.stderr
    assert "job beside has ended before; this is its output" in again.stderr
    assert again.stdout.count("trained") == 6, again.stdout
    delete(cluster, "beside")


def test_a_script_that_was_changed_is_another_job(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("echo first\n")
    assert run(cluster, "edited", "sh train.sh", "--script", script).stdout.count("first") == 6
    script.write_text("echo second\n")
    refused = run(cluster, "edited", "sh train.sh", "--script", script)
    assert refused.returncode == 1
    assert "there is a job edited in default already, and it is not the same" in refused.stderr
    assert "kubectl delete configmap edited" in refused.stderr
    delete(cluster, "edited")
    assert run(cluster, "edited", "sh train.sh", "--script", script).stdout.count("second") == 6
    delete(cluster, "edited")


def test_the_controller_in_a_namespace_of_others_leaves_it_as_it_was(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "team")
    place = ["--manager-namespace", "team"]
    installed = ronde_kube(cluster, "install", *place)
    assert installed.returncode == 0, installed.stderr
    assert "namespace team, which was there, is left as it is" in installed.stderr
    assert "pod-security" not in cluster.kubectl("get", "namespace", "team", "--output=yaml")
    # There is one controller in a cluster, and it is not lost sight of.
    for verb in ("install", "uninstall"):
        elsewhere = ronde_kube(cluster, verb)
        assert elsewhere.returncode == 1
        assert "the controller is in the namespace team" in elsewhere.stderr
        assert "--manager-namespace team" in elsewhere.stderr
    assert ronde_kube(cluster, "uninstall", *place).returncode == 0
    assert cluster.kubectl("get", "namespace", "team", "--output=jsonpath={.status.phase}") == "Active"
    cluster.kubectl("delete", "namespace", "team")
    # The definition of jobs went along.
    prepare_for_controllers(cluster)


def test_output_stays_after_a_deadline(cluster: Cluster) -> None:
    ended = run(cluster, "slow", f"echo begun; exec {FOREVER}", "--deadline", 4)
    assert ended.returncode == 1
    assert "took longer than its deadline of 4 s" in ended.stderr
    assert "kubectl logs slow-chief (kept 1 h)" in ended.stderr
    await_only_pods(cluster, "slow-chief")
    assert "begun" in log(cluster, "slow-chief")
    delete(cluster, "slow")


def test_names_of_others_are_told_left_alone_and_gone_around(cluster: Cluster) -> None:
    cluster.apply(shell_pod("taken-chief", FOREVER))
    ended = run(cluster, "taken", "echo trained")
    assert ended.returncode == 0, ended.stderr
    assert "kubectl delete pod taken-chief -n default" in ended.stderr
    assert "kubectl logs taken-chief-r1 (kept 1 h)" in ended.stderr
    await_only_pods(cluster, "taken-chief", "taken-chief-r1")
    cluster.kubectl("delete", "pod", "taken-chief")
    delete(cluster, "taken")


def test_nothing_is_kept_of_a_job_that_never_ran(cluster: Cluster) -> None:
    ended = ronde_kube(cluster, "run", "--gpus", 6, "--image", "!", "--name", "never", "--", "true")
    assert ended.returncode == 1
    said = r"never-(chief on node-3|worker-0 on node-1) cannot start: its image's name is not valid"
    assert re.search(said, ended.stderr), ended.stderr
    assert "nothing of it is kept" in ended.stderr
    assert "kubectl logs" not in ended.stderr
    await_nothing_left(cluster)


def test_what_can_never_be_is_said_once(cluster: Cluster) -> None:
    ended = ronde_kube(cluster, "run", "--gpus", 11, "--image", TRAINING_IMAGE, "--name", "many", "--", "true")
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if "11" in line]
    assert line.startswith("error: "), ended.stderr
    await_nothing_left(cluster)
