"""The cluster of containers on one machine: `local.yml` against a Docker daemon of our own. Needs root.

One cluster serves all tests here, in their order: `ronde cluster up --local` starts it with one worker, it gets a
second one, which leaves, then another image, and is taken away last.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Command, wheel
from daemon import Daemon, environment
from image_registry import LABEL
from images import archived
from playbooks import Played, play
from playbooks import environment as programs_environment

from waiting import eventually

REGISTRY = Path(__file__).with_name("image_registry.py")
MASTER = "horovod_master"
USERS_LINE = ["horovodrun", "-np", "3", "-H", "host1:1,host2:1,host3:1", "-p", "12345", "python", "/examples/digits.py"]

# Asks JupyterLab something, trusting its own certificate only; the token comes in where nobody sees it.
ASK = """
import ssl, sys, urllib.error, urllib.request as web
ask = web.Request("https://127.0.0.1:8888" + sys.argv[1], headers={"Authorization": "token " + sys.stdin.read()})
try:
    print(web.urlopen(ask, context=ssl.create_default_context(cafile=sys.argv[2])).read().decode())
except urllib.error.HTTPError as refusal:
    print(refusal.code)
"""


class LocalCluster:
    """The daemon and the folder of a cluster, and how it is brought to a size."""

    def __init__(self, machine: Daemon, folder: Path, image: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.image = image
        self.output = ""
        self.command = Command(folder)
        self.command.env = programs_environment(self.env)
        # Where JupyterLab is published, since the daemon has a network of its own.
        self.command.before = ["nsenter", f"--net=/proc/{machine.pid}/ns/net"]

    @property
    def env(self) -> dict[str, str]:
        return {**environment(), "DOCKER_HOST": f"unix://{self.machine.folder}/socket"}

    def play(self, **variables: object) -> Played:
        usual = {"local_inventory": str(self.folder / "inventory.yaml"), "image": str(self.image)}
        done = play("local.yml", env=self.env, **{**usual, **variables})
        self.output += done.output
        return done

    def containers(self) -> dict[str, str]:
        """Return the id of each container by its name."""
        lines = self.machine.docker("ps", "--all", "--no-trunc", "--format", "{{.Names}} {{.ID}}").splitlines()
        return dict(line.split() for line in lines)

    def inside(self, container: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self.machine.result("exec", container, *words, timeout=120)

    def token(self) -> str:
        return self.machine.docker("exec", MASTER, "cat", "/run/ronde/jupyter-token.1000")

    def ask(self, path: str, token: str) -> str:
        """Ask JupyterLab where it is published, as a browser on this machine would."""
        enter = ["nsenter", f"--net=/proc/{self.machine.pid}/ns/net", sys.executable, "-c", ASK, path]
        certificate = self.folder / "local" / MASTER / "tls.crt"
        done = subprocess.run([*enter, certificate], input=token, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("local")
    secrets = tmp_path_factory.mktemp("secrets")
    with archived(folder, secrets) as archive, Daemon(folder / "machine") as machine:
        cluster = LocalCluster(machine, folder, archive)
        done = cluster.command.run("up", "--local", "2", "--image", str(archive), "--wheel", str(wheel()))
        assert done.returncode == 0, done.stderr
        assert "the cluster ronde is up: a master and 1 worker" in done.stdout
        # The run that makes the token; the next one has a log of its own in its place.
        log = (folder / ".ronde" / "ansible.log").read_text()
        assert "Make the token" in log
        cluster.output += done.stdout + done.stderr + log
        yield cluster


def test_a_worker_that_joins_changes_no_other_and_what_is_there_is_not_changed_twice(cluster: LocalCluster) -> None:
    before = cluster.containers()
    assert sorted(before) == [MASTER, "horovod_worker_1"]
    done = cluster.play(local_machines=3).assert_well()
    assert done.changed.pop("ronde-worker-2") > 0
    # What describes the cluster: the inventory, and where ranks can run.
    assert done.changed == {"localhost": 2, "ronde-master": 0, "ronde-worker-1": 0}
    after = cluster.containers()
    assert after.pop("horovod_worker_2")
    assert after == before


def test_the_users_line_trains_over_all_three(cluster: LocalCluster) -> None:
    done = cluster.inside(MASTER, *USERS_LINE)
    assert done.returncode == 0, done.stderr
    assert "accuracy on 3 ranks" in done.stdout
    # Without a port as well, since settings of ssh have it; and every rank is in a container of its own.
    done = cluster.inside(MASTER, "ronde", "run", "--hostfile", "/mnt/share/.ronde/hostfile", "hostname")
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == ["host1", "host2", "host3"], done.stderr


def test_the_command_finds_all_well_and_reaches_every_container(cluster: LocalCluster) -> None:
    command = cluster.command
    done = command.run("status", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [machine["name"] for machine in found["machines"]] == ["ronde-master", "ronde-worker-1", "ronde-worker-2"]
    assert all(machine["container"] == "running" and machine["share"] for machine in found["machines"])
    assert found["jupyter"] == {"address": "https://127.0.0.1:8888/lab", "answers": True, "reached": True}
    assert found["job"] == {"hosts": "ronde-master:1,ronde-worker-1:1", "passed": True}
    assert command.run("ssh", "worker-2", "--", "hostname").stdout == "host3\n"
    assert command.run("ssh", "host2", "--", "hostname").stdout == "host2\n"
    assert command.run("jupyter", "--token").stdout.strip() == cluster.token()
    done = command.run("run", "--", "sh", "-c", "hostname; pwd")
    assert done.returncode == 0, done.stderr
    assert {line.split()[-1] for line in done.stdout.splitlines()} == {"host1", "host2", "host3", "/mnt/share"}
    assert command.run("run", "--", "sh", "-c", "exit 3").returncode == 3


def test_the_command_names_a_container_that_is_down(cluster: LocalCluster) -> None:
    cluster.machine.docker("stop", "--time", "0", "horovod_worker_2")
    done = cluster.command.run("status", "--no-smoke")
    cluster.machine.docker("start", "horovod_worker_2")
    assert done.returncode == 1
    assert "ronde-worker-2: the container horovod_worker_2 is exited" in done.stdout, done.stdout


def test_what_one_container_puts_into_the_share_all_see(cluster: LocalCluster) -> None:
    assert cluster.inside("horovod_worker_1", "sh", "-c", "id -un >/mnt/share/written").returncode == 0
    assert cluster.inside(MASTER, "cat", "/mnt/share/written").stdout == "ronde\n"
    assert (cluster.folder / "share/written").read_text() == "ronde\n"
    # The examples are the share's, so that a change is everybody's.
    assert cluster.inside(MASTER, "sh", "-c", "echo '# mine' >>/examples/digits.py").returncode == 0
    assert "# mine" in cluster.inside("horovod_worker_2", "tail", "-n1", "/examples/digits.py").stdout


def test_jupyterlab_answers_with_the_token_and_refuses_without(cluster: LocalCluster) -> None:
    token = cluster.token()
    assert len(token) == 48
    assert "started" in json.loads(cluster.ask("/api/status", token))
    assert cluster.ask("/api/status", "") == "403"
    assert cluster.ask("/api/status", "0" * 48) == "403"
    published = cluster.machine.docker("port", MASTER)
    assert published == "8888/tcp -> 127.0.0.1:8888"


def test_the_log_says_where_jupyterlab_is_and_how_to_read_the_token(cluster: LocalCluster) -> None:
    log = cluster.machine.result("logs", MASTER).stderr
    assert "JupyterLab: https://127.0.0.1:8888" in log
    assert f"docker exec {MASTER} cat /run/ronde/jupyter-token.1000" in log


def test_the_token_is_in_no_log_no_process_list_and_no_description(cluster: LocalCluster) -> None:
    token = cluster.token()
    places = {"Ansible's output": cluster.output}
    for name in cluster.containers():
        log = cluster.machine.result("logs", name)
        places[f"log of {name}"] = log.stdout + log.stderr
        places[f"description of {name}"] = cluster.machine.docker("inspect", name)
    image = cluster.machine.docker("inspect", "--format", "{{.Image}}", MASTER)
    places["history of the image"] = cluster.machine.docker("history", "--no-trunc", image)
    # The containers' processes have numbers here, too.
    for process in Path("/proc").glob("[0-9]*"):
        for part in ("cmdline", "environ"):
            try:
                places[f"{process}/{part}"] = (process / part).read_text(errors="replace")
            except OSError:
                continue
    assert any("jupyter" in text for place, text in places.items() if place.endswith("cmdline"))
    assert [place for place, text in places.items() if token in text] == []


def test_containers_have_no_more_rights_than_they_need(cluster: LocalCluster) -> None:
    for name in cluster.containers():
        assert cluster.inside(name, "id", "-u").stdout == "1000\n"
        status = cluster.inside(name, "grep", "-E", "^(CapBnd|NoNewPrivs)", "/proc/1/status").stdout.split()
        assert status == ["CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
        mounts = cluster.machine.docker("inspect", "--format", "{{range .Mounts}}{{.Source}} {{end}}", name)
        assert ".sock" not in mounts


def test_only_the_master_logs_in_and_only_certificates_count(cluster: LocalCluster) -> None:
    ssh = ["ssh", "-o", "BatchMode=yes"]
    assert cluster.inside(MASTER, *ssh, "host2", "hostname").stdout == "host2\n"
    # The private halves of the authority are in no container, and workers have no key to log in with.
    for name in cluster.containers():
        assert cluster.inside(name, "find", "/etc/ronde", "-name", "*authority").stdout == ""
    refused = cluster.inside("horovod_worker_1", *ssh, "host3", "true")
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr
    plain = "ssh-keygen -q -t ed25519 -N '' -f /tmp/plain && ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no"
    refused = cluster.inside(MASTER, "sh", "-c", f"{plain} -i /tmp/plain -p 12345 host2 true")
    assert "Permission denied" in refused.stderr


def test_a_container_without_a_certificate_is_not_taken_for_one_of_the_cluster(cluster: LocalCluster) -> None:
    network = ["--network=ronde-local", "--network-alias=host9", "--user=1000"]
    image = cluster.machine.docker("inspect", "--format", "{{.Image}}", MASTER)
    with cluster.machine.container(*network, image, "sshd", "-p", "12345") as stranger:
        check = (stranger, "/usr/lib/ronde/healthcheck")
        eventually(lambda: cluster.inside(*check).returncode == 0, "the stranger to be healthy")
        refused = cluster.inside(MASTER, "ssh", "-o", "BatchMode=yes", "host9", "true")
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr


def test_a_worker_with_another_key_than_before_is_trusted_again(cluster: LocalCluster) -> None:
    # As on a machine that was made anew: the same name and address, and nothing there.
    shutil.rmtree(cluster.folder / "local" / "horovod_worker_1")
    before = cluster.containers()
    done = cluster.play(local_machines=3).assert_well()
    assert done.changed.pop("ronde-worker-1") > 0
    assert done.changed == {"localhost": 0, "ronde-master": 0, "ronde-worker-2": 0}
    # It has started anew with what it has now, and the others have not.
    after = cluster.containers()
    assert after.pop("horovod_worker_1") != before.pop("horovod_worker_1")
    assert after == before
    assert cluster.inside(MASTER, "ssh", "-o", "BatchMode=yes", "host2", "hostname").stdout == "host2\n"


def test_the_master_comes_back_with_its_token_when_one_of_its_servers_dies(cluster: LocalCluster) -> None:
    token = cluster.token()
    started = ["inspect", "--format", "{{.State.StartedAt}}", MASTER]
    before = cluster.machine.docker(*started)
    cluster.inside(MASTER, "sh", "-c", "kill $(cat /run/ronde/sshd.1000.pid)")
    eventually(lambda: cluster.machine.docker(*started) != before, "the container to be started anew")
    eventually(lambda: cluster.inside(MASTER, "/usr/lib/ronde/healthcheck").returncode == 0, "the master to be healthy")
    assert cluster.token() == token
    assert "started" in json.loads(cluster.ask("/api/status", token))


def test_a_container_of_somebody_else_is_left_alone(cluster: LocalCluster) -> None:
    before = cluster.containers()
    refused = cluster.play(cluster_name="other")
    assert refused.status != 0
    said = f"not of the cluster other in {cluster.folder} and is called {MASTER}"
    assert said in refused.said(), refused.output
    assert cluster.containers() == before


def test_another_folder_neither_takes_nor_removes_what_is_this_folders(cluster: LocalCluster, tmp_path: Path) -> None:
    before = cluster.containers()
    refused = cluster.play(local_inventory=str(tmp_path / "inventory.yaml"))
    assert refused.status != 0
    said = (
        f"It is of the cluster in {cluster.folder}: take that down first (ronde cluster down --folder {cluster.folder})"
    )
    assert said in refused.said(), refused.output
    cluster.play(local_inventory=str(tmp_path / "inventory.yaml"), local_state="absent").assert_well()
    assert cluster.containers() == before
    # Its network is there, too.
    assert cluster.inside(MASTER, "ssh", "-o", "BatchMode=yes", "host2", "hostname").stdout == "host2\n"
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_leaves_changes_no_other(cluster: LocalCluster) -> None:
    before = cluster.containers()
    done = cluster.play(local_machines=2).assert_well()
    # The container, and what describes the cluster.
    assert done.changed == {"localhost": 3, "ronde-master": 0, "ronde-worker-1": 0}
    assert before.pop("horovod_worker_2")
    assert cluster.containers() == before
    done = cluster.inside(MASTER, "ronde", "run", "--hostfile", "/mnt/share/.ronde/hostfile", "hostname")
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == ["host1", "host2"], done.stderr


@contextlib.contextmanager
def registry(cluster: LocalCluster) -> Iterator[str]:
    """Start a registry beside the daemon, which asks only itself without TLS; give the name of its one image."""
    enter = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/proc/{cluster.machine.pid}/ns/net"]
    words = [*enter, sys.executable, REGISTRY, cluster.image, "5000", "lab/ronde", "cpu"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield "127.0.0.1:5000/lab/ronde:cpu"
        finally:
            process.kill()


def test_an_image_is_pulled_by_its_name_and_one_that_is_not_there_changes_nothing(cluster: LocalCluster) -> None:
    before = cluster.containers()
    with registry(cluster) as name:
        refused = cluster.command.run("up", "--local", "2", "--image", f"{name}-of-nobody")
        assert refused.returncode == 1
        for words in (
            "the registry does not give out the image",
            "image : Pull the image on ronde-master: ",
            f"Error pulling image {name}-of-nobody",
            "fix: check the image's name",
        ):
            assert words in refused.stderr, refused.stderr
        assert cluster.containers() == before
        done = cluster.command.run("up", "--local", "2", "--image", name)
        assert done.returncode == 0, done.stderr
    assert before.keys() == cluster.containers().keys()
    for container in before:
        described = cluster.machine.docker("inspect", "--format", "{{json .Config}}", container)
        assert json.loads(described)["Image"] == name
        assert json.loads(described)["Labels"][LABEL] == "lab/ronde:cpu"
    # The registry is gone, and is not asked again for what is there.
    done = cluster.play(local_machines=2, image=name).assert_well()
    # The inventory says what the last run was told.
    assert done.changed == {"localhost": 1, "ronde-master": 0, "ronde-worker-1": 0}


def test_what_is_taken_down_leaves_nothing_but_the_share_and_then_nothing(cluster: LocalCluster) -> None:
    done = cluster.command.run("down", "--local", "--yes")
    assert done.returncode == 0, done.stderr
    assert cluster.containers() == {}
    networks = cluster.machine.docker("network", "ls", "--format", "{{.Name}}").split()
    assert sorted(networks) == ["bridge", "host", "none"]
    assert cluster.machine.docker("volume", "ls", "--quiet") == ""
    assert not (cluster.folder / "inventory.yaml").exists()
    assert not (cluster.folder / "local").exists()
    assert (cluster.folder / "share/written").exists()
    cluster.play(local_state="absent", local_remove_share=True).assert_well()
    assert not (cluster.folder / "share").exists()


def test_without_docker_it_says_what_to_do(tmp_path: Path) -> None:
    nowhere = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/socket"}
    refused = play("local.yml", env=nowhere, local_inventory=str(tmp_path / "inventory.yaml"), image="ronde:cpu")
    assert refused.status != 0
    assert "Docker does not answer here" in refused.said()
    assert "apt-get install docker.io" in refused.said()
    assert list(tmp_path.iterdir()) == []
