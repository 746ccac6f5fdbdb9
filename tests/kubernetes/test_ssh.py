"""Jobs over ssh, the classic way: mpirun and horovodrun of the user's image start the processes. Needs root.

All in a namespace that allows nothing but restricted pods, with an image that has a real OpenSSH and Debian's Open MPI.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from deployed import MPI_IMAGE, mpi_images
from jobs import assert_trained, await_all_free
from laptop import RONDE, known, ronde_kube
from pods import FOREVER, await_only_pods, pods
from testbed import Cluster, wait_for

NAMESPACE = "restricted"

pytestmark = pytest.mark.usefixtures("everything_is_given_back")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster([5, 3, 2], images=[mpi_images()]) as cluster:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        yield cluster


def words_of_run(name: str, *words: object) -> list[str]:
    """Return the words of `kube run` for a job over ssh on six GPUs: five of node-1 and one of node-3."""
    return ["--ssh", "--gpus", "6", "--image", MPI_IMAGE, "--name", name, *map(str, words)]


def run(cluster: Cluster, name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a job to its end."""
    return ronde_kube(cluster, "run", *words_of_run(name, *words), namespace=NAMESPACE)


def test_mpirun_starts_a_process_on_every_gpu(cluster: Cluster) -> None:
    ran = run(cluster, "hosts", "--", "mpirun", "-np", 6, "hostname")
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert sorted(ran.stdout.split()) == ["hosts-chief", *5 * ["hosts-worker-0"]], ran.stdout
    assert "job hosts · 6 GPUs · node-1: 5, node-3: 1" in ran.stderr
    assert "6 GPUs free again" in ran.stderr
    await_only_pods(cluster, "hosts-chief", namespace=NAMESPACE)
    cluster.kubectl("delete", "configmap", "hosts", f"--namespace={NAMESPACE}")


def test_sessions_find_the_containers_environment_and_strangers_find_no_way_in(cluster: Cluster) -> None:
    script = (
        "cat $RONDE_HOSTFILE; ssh ways-worker-0 'id -u; echo $COLOUR; nproc >/dev/null && ssh ways-worker-0 hostname';"
        # Whoever has no key, and whoever has another.
        "ssh-keygen -q -t ed25519 -N '' -f /tmp/other;"
        "there=ways-worker-0.ways.restricted.svc.cluster.local; how='-o BatchMode=yes -o StrictHostKeyChecking=no';"
        "/usr/bin/ssh -p 2222 $how $there true; /usr/bin/ssh -p 2222 $how -i /tmp/other $there true; true"
    )
    ran = run(cluster, "ways", "--env", 'COLOUR=light "blue"', "--", "sh", "-c", script)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    hosts = ["ways-chief slots=1", "ways-worker-0 slots=5"]
    lines = ran.stdout.splitlines()
    assert lines[:5] == [*hosts, "1000", 'light "blue"', "ways-worker-0"], ran.stdout
    assert ran.stdout.count("Permission denied (publickey)") == 2, ran.stdout
    cluster.kubectl("delete", "configmap", "ways", f"--namespace={NAMESPACE}")


def test_horovodrun_of_the_image_trains_over_ssh(cluster: Cluster) -> None:
    script = "exec horovodrun -np 6 --hostfile $RONDE_HOSTFILE python /examples/digits.py"
    ran = run(cluster, "trains", "--", "sh", "-c", script)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert_trained(ran.stdout)
    cluster.kubectl("delete", "configmap", "trains", f"--namespace={NAMESPACE}")


def test_the_commands_status_is_the_jobs(cluster: Cluster) -> None:
    ran = run(cluster, "fails", "--", "sh", "-c", "ssh fails-worker-0 'exit 7'")
    assert ran.returncode == 7, ran.stderr + ran.stdout
    assert "6 GPUs free again" in ran.stderr
    cluster.kubectl("delete", "configmap", "fails", f"--namespace={NAMESPACE}")


def test_a_user_without_a_name_is_told_what_ssh_needs(cluster: Cluster) -> None:
    ran = run(cluster, "nameless", "--run-as-user", 4242, "--", "ssh", "nameless-worker-0", "true")
    assert ran.returncode != 0
    assert "user number 4242 has no name in the image" in ran.stdout, ran.stdout
    cluster.kubectl("delete", "configmap", "nameless", f"--namespace={NAMESPACE}")


def test_workers_end_unaided_when_the_chief_is_gone(cluster: Cluster) -> None:
    words = words_of_run("left", "--", "sh", "-c", f"ssh left-worker-0 'echo there; {FOREVER}'")
    environment = {**os.environ, **known(cluster.kubeconfig(namespace=NAMESPACE))}
    command = [RONDE, "kube", "run", *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as managing:
        assert managing.stdout is not None
        assert next(line for line in managing.stdout if "there" in line)
        # Nobody looks after the job any more.
        managing.send_signal(signal.SIGKILL)
    cluster.kubectl("delete", "pod", "left-chief", f"--namespace={NAMESPACE}", "--wait=false")

    def worker_ended() -> bool:
        worker = pods(cluster, NAMESPACE)["left-worker-0"]
        assert "deletionTimestamp" not in worker["metadata"]
        return worker["status"]["phase"] in ("Succeeded", "Failed")

    wait_for("the worker to end by itself", worker_ended, 90)
    await_all_free(cluster)
    cluster.kubectl("delete", "configmap", "left", f"--namespace={NAMESPACE}")


def test_keys_are_made_for_each_job_and_go_with_it(cluster: Cluster) -> None:
    def secrets() -> dict[str, dict[str, str]]:
        found = json.loads(cluster.kubectl("get", "secrets", f"--namespace={NAMESPACE}", "--output=json"))["items"]
        return {one["metadata"]["name"]: one["data"] for one in found}

    publics = set()
    for name in ("one", "two"):
        assert run(cluster, name, "--", "true").returncode == 0
        (data,) = (data for secret, data in secrets().items() if secret.startswith(f"{name}-secret-"))
        publics |= {data["ssh-key.pub"], data["ssh-host-key.pub"]}
        cluster.kubectl("delete", "configmap", name, f"--namespace={NAMESPACE}")
    assert len(publics) == 4
    wait_for("the secrets to be gone", lambda: not any(name.startswith(("one-", "two-")) for name in secrets()))
