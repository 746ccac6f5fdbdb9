"""The roles on real machines: two guests of QEMU with own kernels and disks become a cluster. Needs root and an hour.

The tests build on each other, in their order: `ronde cluster up` comes first, `down` last. The image has no framework,
because these guests are slow; the users' line trains `digits.py`, which needs none, and so does the notebook.
"""

from __future__ import annotations

import json
import shlex
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Command, wheel
from guests import Pair
from images import archived
from page import PREFERENCES, browser, run_example
from playbooks import ROOT, environment, play

HERE = Path(__file__).resolve().parent
USERS_LINE = "horovodrun -np 2 -H host1:1,host2:1 -p 12345 python /examples/digits.py"
HEALTHY = "sudo docker exec {} /usr/lib/ronde/healthcheck"
# How the page looked when the training was done.
PICTURE = ROOT / "target" / "test-logs" / "cluster-notebook.png"


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("guests")
    try:
        with archived(folder, tmp_path_factory.mktemp("secrets")), Pair(folder) as guests:
            yield guests
    finally:
        for disk in folder.glob("*.qcow2"):
            disk.unlink()


@pytest.fixture(scope="module")
def cluster(guests: Pair) -> Command:
    """Make a cluster of the two."""
    command = Command(guests.folder / "cluster")
    command.env = environment(command.env)
    command.patience = 3600
    words = ["--inventory", guests.inventory(), "--image", guests.folder / "image.tar", "--wheel", wheel()]
    done = command.run("up", *map(str, words))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the cluster ronde is up: a master and 1 worker" in done.stdout
    return command


@pytest.mark.usefixtures("cluster")
def test_a_second_run_changes_nothing(guests: Pair) -> None:
    again = play("site.yml", inventory=guests.inventory(), image=str(guests.folder / "image.tar")).assert_well()
    assert again.changed == {"localhost": 0, guests.master.name: 0, guests.worker.name: 0}


@pytest.mark.usefixtures("cluster")
def test_every_machine_keeps_the_time_and_lets_training_lock_memory(guests: Pair) -> None:
    for guest, container in ((guests.master, "horovod_master"), (guests.worker, "horovod_worker")):
        inside = f"sudo docker exec {container} sh -c 'ulimit -l'"
        said = guest.run(f"systemctl is-active systemd-timesyncd; ulimit -l; ulimit -n; {inside}")
        assert said.split() == ["active", "unlimited", "1048576", "unlimited"], guest.name


def test_the_command_finds_all_of_it_well_and_trains_on_it(guests: Pair, cluster: Command) -> None:
    done = cluster.run("status", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    address = f"https://127.0.0.1:{guests.jupyter_port}/lab"
    assert found["jupyter"] == {"address": address, "answers": True, "reached": True}
    assert cluster.run("jupyter").stdout.startswith(f"{address}\n")
    assert cluster.run("jupyter", "--token").stdout == f"{token_of(guests)}\n"
    assert cluster.run("ssh", "worker-1", "--", "hostname").stdout == "ronde-worker-1\n"
    done = cluster.run("run", "--", "python", "/examples/digits.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy on 2 ranks" in done.stdout
    assert cluster.run("run", "--", "sh", "-c", "exit 3").returncode == 3


@pytest.mark.usefixtures("cluster")
def test_what_the_master_writes_into_the_share_the_worker_reads_over_nfs(guests: Pair) -> None:
    # They are two machines: what one has outside the share, the other has not.
    guests.master.run("sudo touch /root-of-the-master")
    assert guests.worker.result("test -e /root-of-the-master").returncode == 1
    assert guests.master.run("cat /etc/machine-id") != guests.worker.run("cat /etc/machine-id")
    assert guests.worker.run("findmnt -no FSTYPE,SOURCE /mnt/share").split() == ["nfs4", "10.78.0.1:/srv/ronde"]
    assert guests.master.run("findmnt -no FSTYPE /srv/ronde") == "ext4"
    guests.master.run("sudo docker exec horovod_master sh -c 'echo from the master >/mnt/share/written'")
    assert guests.worker.run("sudo docker exec horovod_worker cat /mnt/share/written") == "from the master"
    # Root of a worker is nobody there, and nobody else may mount it.
    refused = guests.worker.result("sudo touch /mnt/share/.ronde/hosts")
    assert "Permission denied" in refused.stderr
    assert guests.master.run("sudo exportfs -s").split("(")[0].split() == ["/srv/ronde", "10.78.0.2"]


def token_of(guests: Pair) -> str:
    return guests.master.run("sudo docker exec horovod_master cat /run/ronde/jupyter-token.1000")


def assert_trains(guests: Pair) -> None:
    done = guests.master.result(f"sudo docker exec horovod_master {USERS_LINE}", 600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy on 2 ranks" in done.stdout


@pytest.mark.usefixtures("cluster")
def test_the_users_line_trains_over_both(guests: Pair) -> None:
    assert_trains(guests)


@pytest.mark.usefixtures("cluster")
def test_jupyterlab_answers_with_the_token_and_refuses_without(guests: Pair) -> None:
    log = guests.master.run("sudo docker logs horovod_master 2>&1")
    assert f"JupyterLab: https://127.0.0.1:{guests.jupyter_port}" in log
    assert "docker exec horovod_master cat /run/ronde/jupyter-token.1000" in log
    token = token_of(guests)
    assert token not in log
    # Outside the container only root reads it.
    assert guests.master.result("cat /etc/ronde/container/jupyter-token").returncode != 0
    trusted = ssl.create_default_context(cadata=guests.master.run("sudo cat /etc/ronde/container/tls.crt"))

    def asked(token: str) -> str:
        ask = urllib.request.Request(
            f"https://127.0.0.1:{guests.jupyter_port}/api/status", headers={"Authorization": f"token {token}"}
        )
        with urllib.request.urlopen(ask, context=trusted, timeout=60) as answer:
            return str(answer.read().decode())

    assert "started" in json.loads(asked(token))
    with pytest.raises(urllib.error.HTTPError, match="403"):
        asked("0" * 48)


@pytest.mark.usefixtures("cluster")
def test_a_notebook_trains_over_both_through_the_page(guests: Pair, tmp_path: Path) -> None:
    for file, contents in PREFERENCES.items():
        words = f"mkdir -p ~/.jupyter/$(dirname {file}); cat >~/.jupyter/{file}"
        write = f"sudo docker exec --interactive horovod_master sh -c {shlex.quote(words)}"
        guests.master.run(f"echo {shlex.quote(contents)} | {write}")
    with browser(tmp_path, patience=600) as page:
        page.open(f"https://127.0.0.1:{guests.jupyter_port}", token_of(guests), "examples/ronde.ipynb")
        training = run_example(page)
        page.wait_for_text(training, ".ronde-head", "✓ done · 2 ranks on 2 hosts")
        page.take_picture(training, PICTURE)


@pytest.mark.usefixtures("cluster")
def test_the_key_of_the_authority_is_on_the_master_only(guests: Pair) -> None:
    assert guests.master.run("sudo find / -xdev -name host_authority") == "/etc/ronde/authority/host_authority"
    assert guests.worker.run("sudo find / -xdev -name '*_authority'") == ""


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("which", ["worker", "master"])
def test_a_guest_that_boots_anew_comes_back_with_everything(guests: Pair, which: str) -> None:
    guest, container = (guests.master, "horovod_master") if which == "master" else (guests.worker, "horovod_worker")
    guest.reboot()
    guest.await_ready(HEALTHY.format(container))
    assert guest.run(f"sudo docker exec {container} cat /mnt/share/written") == "from the master"
    assert_trains(guests)


@pytest.mark.usefixtures("cluster")
def test_images_of_earlier_runs_are_removed_and_the_one_in_use_is_not(guests: Pair) -> None:
    worker = guests.worker
    used = worker.run("sudo docker inspect --format '{{.Config.Image}}' horovod_worker")
    worker.run(f"sudo docker tag {used} ronde-cluster:old")
    done = play(HERE / "forget_images.yml", inventory=guests.inventory(), container_image=used).assert_well()
    assert done.changed == {worker.name: 1}
    left = worker.run("sudo docker image ls --format '{{.Repository}}:{{.Tag}}' ronde-cluster")
    assert left.splitlines() == [used]


@pytest.mark.usefixtures("cluster")
def test_the_cluster_is_taken_off_one_worker(guests: Pair) -> None:
    name = guests.worker.name
    assert set(play("remove.yml", "--limit", name, inventory=guests.inventory()).assert_well().changed) == {name}
    assert guests.worker.run("sudo docker ps --all --quiet") == ""
    assert guests.worker.run("grep -c /mnt/share /etc/fstab || true") == "0"
    # What made it wait for a share that is no longer its own.
    assert "/mnt/share" not in guests.worker.run("systemctl show --property RequiresMountsFor docker")
    guests.master.run(HEALTHY.format("horovod_master"))


def test_the_cluster_is_taken_off_and_the_share_stays(guests: Pair, cluster: Command) -> None:
    done = cluster.run("down", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    for guest in (guests.master, guests.worker):
        assert guest.run("sudo docker ps --all --quiet") == ""
        assert guest.result("findmnt /mnt/share").returncode == 1
        assert guest.result("sudo test -e /etc/ronde").returncode == 1
    assert guests.master.run("sudo exportfs -s") == ""
    assert guests.master.run("cat /srv/ronde/written") == "from the master"
