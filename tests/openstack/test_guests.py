"""The roles on real machines: two guests of QEMU with own kernels and disks take site.yml. Needs root; half an hour.

The tests build on each other, in their order. The image has no framework, because these guests are slow; the users'
line trains `digits.py`, which needs none.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from guests import Pair
from images import archived
from playbooks import play

pytestmark = pytest.mark.slow

USERS_LINE = "horovodrun -np 2 -H host1:1,host2:1 -p 12345 python /examples/digits.py"
HEALTHY = "sudo docker exec {} /usr/lib/ronde/healthcheck"


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
def inventory(guests: Pair) -> Path:
    """Run the roles for the first time."""
    inventory = guests.inventory(image=str(guests.folder / "image.tar"))
    play("site.yml", inventory=inventory).assert_well()
    return inventory


def test_a_second_run_changes_nothing(guests: Pair, inventory: Path) -> None:
    again = play("site.yml", inventory=inventory).assert_well()
    assert again.changed == {"localhost": 0, guests.master.name: 0, guests.worker.name: 0}


@pytest.mark.usefixtures("inventory")
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


def assert_trains(guests: Pair) -> None:
    done = guests.master.result(f"sudo docker exec horovod_master {USERS_LINE}", 600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy on 2 ranks" in done.stdout


@pytest.mark.usefixtures("inventory")
def test_the_users_line_trains_over_both(guests: Pair) -> None:
    assert_trains(guests)


@pytest.mark.usefixtures("inventory")
def test_jupyterlab_answers_with_the_token_and_refuses_without(guests: Pair) -> None:
    log = guests.master.run("sudo docker logs horovod_master 2>&1")
    assert "JupyterLab: https://127.0.0.1:8888" in log
    assert "docker exec horovod_master cat /run/ronde/jupyter-token.1000" in log
    token = guests.master.run("sudo docker exec horovod_master cat /run/ronde/jupyter-token.1000")
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


@pytest.mark.usefixtures("inventory")
def test_the_key_of_the_authority_is_on_the_master_only(guests: Pair) -> None:
    assert guests.master.run("sudo find / -xdev -name host_authority") == "/etc/ronde/authority/host_authority"
    assert guests.worker.run("sudo find / -xdev -name '*_authority'") == ""


@pytest.mark.usefixtures("inventory")
@pytest.mark.parametrize("which", ["worker", "master"])
def test_a_guest_that_boots_anew_comes_back_with_everything(guests: Pair, which: str) -> None:
    guest, container = (guests.master, "horovod_master") if which == "master" else (guests.worker, "horovod_worker")
    guest.reboot()
    guest.await_ready(HEALTHY.format(container))
    assert guest.run(f"sudo docker exec {container} cat /mnt/share/written") == "from the master"
    assert_trains(guests)


def test_the_cluster_is_taken_off_and_the_share_stays(guests: Pair, inventory: Path) -> None:
    play("remove.yml", inventory=inventory).assert_well()
    for guest in (guests.master, guests.worker):
        assert guest.run("sudo docker ps --all --quiet") == ""
        assert guest.result("findmnt /mnt/share").returncode == 1
        assert guest.result("sudo test -e /etc/ronde").returncode == 1
    assert guests.master.run("sudo exportfs -s") == ""
    assert guests.master.run("cat /srv/ronde/written") == "from the master"
