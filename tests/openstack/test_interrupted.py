"""`ronde cluster` on a real OpenStack where something comes in between; then `up` finishes, and `down` leaves nothing.

It is interrupted or killed at any moment, or the cloud no longer has what the files name. The cloud is that of
test_cloud.py, and Ansible is left out here, too. `make test-openstack` runs this.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_cloud
from command import Command, await_that
from terraform import Cluster, program
from testbed import Cloud

cloud = test_cloud.cloud
agent = test_cloud.agent
template = test_cloud.template
cluster = test_cloud.cluster

# How a run ends early: by Ctrl-C, by a kill of the command alone, and with all that it has started at once, as when the
# machine that it runs on goes down.
INTERRUPTED, KILLED, LOST = "interrupted", "killed", "lost with its machine"


@pytest.fixture
def command(cluster: Cluster) -> Command:
    """Return `ronde cluster` in the folder of a cluster that can be made."""
    command = Command(cluster.folder)
    command.before, command.terraform, command.patience = [*cluster.before], program(), 600
    command.env |= cluster.env
    # This one has OpenStack's library.
    command.fake("python3", f'exec {sys.executable} "$@"')
    command.env["PATH"] = f"{command.programs}:{command.env['PATH']}"
    return command


@contextlib.contextmanager
def session(command: Command, verb: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a verb in a session of its own, as a terminal does; in the end nothing of that is left."""
    process = command.start(verb, *words, session=True)
    try:
        yield process
    finally:
        lose(process.pid)
        process.communicate()


def members(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for process in Path("/proc").iterdir():
        # Those that end meanwhile are none of it any more.
        with contextlib.suppress(OSError, ValueError):
            state, _, _, number = (process / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(number) == leader and state != "Z":
                found.append(int(process.name))
    return found


def lose(leader: int) -> None:
    """Kill a whole session. None of it learns of another's end before its own."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in members(leader):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


def cut_short(command: Command, cloud: Cloud, verb: str, way: str, latest: int, chance: random.Random) -> None:
    """Run a verb, end it early after some of its first changes, and wait until all that it had begun is over."""
    changes, more = chance.randint(0, latest), chance.uniform(0, 2)
    print(f"{verb} is {way} {more:.1f} s after {changes} changes")
    with session(command, verb, "--yes") as process:
        assert process.stdout is not None
        said = ""
        while len(re.findall(r"^  ✓ (?:created|replaced|deleted) ", said, re.MULTILINE)) < changes:
            line = process.stdout.readline()
            if not line:
                break
            said += line
        time.sleep(more)  # sleep: the end is meant to come at any moment
        if way == INTERRUPTED:
            os.killpg(process.pid, signal.SIGINT)
        elif way == KILLED:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            lose(process.pid)
        said += process.communicate(timeout=300)[0]
        print(said)
        test_cloud.assert_no_secret(said)
        # A command that is killed has Terraform stop, which takes its time.
        await_that("the end of all that was started", lambda: not members(process.pid), 300)
    assert process.returncode in (0, 130, -signal.SIGKILL), said
    test_cloud.await_quiet(cloud)


# Without Ansible, a cluster of two workers is 26 changes.
@pytest.mark.parametrize(
    ("seed", "first", "second", "third"),
    [(1, INTERRUPTED, LOST, KILLED), (2, KILLED, INTERRUPTED, LOST), (3, LOST, KILLED, INTERRUPTED)],
)
def test_what_is_cut_short_again_and_again_comes_up_and_leaves_nothing(
    command: Command, cluster: Cluster, cloud: Cloud, seed: int, first: str, second: str, third: str
) -> None:
    chance = random.Random(seed)
    cut_short(command, cloud, "up", first, 20, chance)
    cut_short(command, cloud, "up", second, 8, chance)
    made = command.run("up", "--yes")
    assert made.returncode == 0, made.stdout + made.stderr
    assert "the cluster ronde is up: a master and 2 workers" in made.stdout
    assert set(test_cloud.instances(cloud)) == {"ronde-master", "ronde-worker-1", "ronde-worker-2"}
    assert command.run("ssh", "worker-2", "--", "hostname").stdout == "ronde-worker-2\n"
    assert test_cloud.leftovers(cluster) == (0, "")

    cut_short(command, cloud, "down", third, 20, chance)
    gone = command.run("down", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert cloud.everything() == {}


def test_down_needs_nothing_that_it_does_not_delete(
    command: Command, cluster: Cluster, cloud: Cloud, agent: dict[str, str]
) -> None:
    pair = {"name": "anna", "type": "ssh", "public_key": Path(agent["KEY"]).read_text()}
    cloud.api("POST", "compute", "/os-keypairs", {"keypair": pair})
    cluster.write(horovod_master_node={"public_key": None, "key_pair": "anna"}, horovod_worker_node={"count": 0})
    try:
        made = command.run("up")
        assert made.returncode == 0, made.stdout + made.stderr
    finally:
        cloud.api("DELETE", "compute", "/os-keypairs/anna")
    try:
        gone = command.run("down", "--yes")
    finally:
        # What the folder's Terraform is asked for in the end has to be there.
        cluster.write(horovod_master_node={"public_key": agent["KEY"], "key_pair": None})
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert "warning: the plan failed: the cloud has no such key pair" in gone.stderr
    assert cloud.everything() == {}
