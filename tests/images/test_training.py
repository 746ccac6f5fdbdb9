"""Containers that train together: by ssh as users write it, and by agents that wait. Needs root.

Two machines are joined by a cable; each has Docker's bridge with the same range of addresses, so that an address such
as 172.17.0.2 exists on both and means another container on each. Every job says which containers its ranks ran in,
and must learn the digits as well as one process does, which the example checks itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import KILLED, SSHD_AS_USERS_START_IT, await_line, await_server, exit_status
from daemon import Daemon

# The container is asked for its name through its first process: a session by ssh has an environment of its own.
SAY_WHERE = "tr '\\0' '\\n' </proc/1/environ | grep ^WHICH= && exec python /examples/digits.py"
TRAINING = ["bash", "-c", SAY_WHERE]

# What the launcher warns of when ranks cannot reach each other by themselves.
RELAYED = "do not reach each other"


def named(name: str) -> list[str]:
    """Return what makes `SAY_WHERE` print a name."""
    return ["--env", f"WHICH={name}"]


def mounted(ssh_folder: Path) -> list[str]:
    """Return what gives a container the folder, as root and as the user that the images know beside it."""
    return [f"--volume={ssh_folder}:{home}/.ssh" for home in ("/root", "/home/ronde")]


@contextlib.contextmanager
def worker(machine: Daemon, image: str, ssh_folder: Path, *options: str) -> Iterator[str]:
    """Start a worker the way users do, and wait until its ssh server answers."""
    mount = mounted(ssh_folder)
    with machine.container(*mount, *named("worker"), *options, image, *SSHD_AS_USERS_START_IT) as container:
        await_server(machine, container)
        yield container


def train_from_master(
    machine: Daemon, image: str, ssh_folder: Path, *options: str, host: str, port: int = 12345
) -> subprocess.CompletedProcess[str]:
    """Run the users' line in a master container: one rank there, one on the other host."""
    mount = mounted(ssh_folder)
    line = ["horovodrun", "-np", "2", "-H", f"localhost:1,{host}:1", "-p", port, *TRAINING]
    return machine.result("run", "--rm", *mount, *named("master"), *options, image, *line, timeout=120)


def assert_trained(done: subprocess.CompletedProcess[str], *containers: str) -> None:
    """Check that the job ended well and that its ranks ran where they should."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy on 2 ranks" in done.stdout
    seen = sorted(line.partition("WHICH=")[2] for line in done.stdout.splitlines() if "WHICH=" in line)
    assert seen == sorted(containers)


def test_two_machines_with_host_networking(machines: tuple[Daemon, Daemon], image: str, ssh_folder: Path) -> None:
    left, right = machines
    # Users also gave both the same name; it must not matter.
    options = ["--network=host", "--hostname=horovod"]
    with worker(right, image, ssh_folder, *options):
        done = train_from_master(left, image, ssh_folder, *options, host=right.address)
    assert_trained(done, "master", "worker")


def test_one_bridge(machine: Daemon, image: str, ssh_folder: Path) -> None:
    with worker(machine, image, ssh_folder) as container:
        done = train_from_master(machine, image, ssh_folder, host=machine.bridge_address(container))
    assert_trained(done, "master", "worker")


def test_one_bridge_as_another_user_than_root(machine: Daemon, image: str, ssh_folder: Path) -> None:
    for path in (ssh_folder, *ssh_folder.iterdir()):
        os.chown(path, 1000, 1000)
    with worker(machine, image, ssh_folder, "--user=1000") as container:
        host = machine.bridge_address(container)
        done = train_from_master(machine, image, ssh_folder, "--user=1000", host=host)
    assert_trained(done, "master", "worker")


def test_one_bridge_by_name(machine: Daemon, image: str, ssh_folder: Path) -> None:
    network = machine.docker("network", "create", "training")
    try:
        with worker(machine, image, ssh_folder, "--network=training", "--name=gpu2"):
            done = train_from_master(machine, image, ssh_folder, "--network=training", host="gpu2")
    finally:
        machine.docker("network", "rm", network)
    assert_trained(done, "master", "worker")


def test_one_bridge_through_a_published_port(machine: Daemon, image: str, ssh_folder: Path) -> None:
    with worker(machine, image, ssh_folder, "--publish=2345:12345"):
        done = train_from_master(machine, image, ssh_folder, host=machine.address, port=2345)
    assert_trained(done, "master", "worker")


def test_two_bridges_of_which_only_the_ssh_port_is_published(
    machines: tuple[Daemon, Daemon], image: str, ssh_folder: Path
) -> None:
    # No rank can reach another by itself here, in either direction: their traffic goes through the launcher, and it
    # says so, because that is slower.
    left, right = machines
    with worker(right, image, ssh_folder, "--publish=12345:12345"):
        done = train_from_master(left, image, ssh_folder, host=right.address)
    assert_trained(done, "master", "worker")
    assert RELAYED in done.stderr


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "shipped"])
def test_the_script_lies_outside_the_image(
    machine: Daemon, image: str, ssh_folder: Path, tmp_path: Path, shared: bool
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(
        "import ronde, numpy\nronde.init()\nprint(ronde.allreduce(numpy.ones(2), op=ronde.Sum))"
    )
    volume = f"--volume={code}:/work"
    # A worker that does not share the folder is sent the script.
    ship = [] if shared else ["--ship", "train.py"]
    with worker(machine, image, ssh_folder, *([volume] if shared else [])) as container:
        hosts = f"localhost:1,{machine.bridge_address(container)}:1"
        line = ["horovodrun", "-np", "2", "-H", hosts, "-p", "12345", *ship, "python", "train.py"]
        master = [*mounted(ssh_folder), volume, "--workdir=/work"]
        done = machine.result("run", "--rm", *master, image, *line, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[2. 2.]") == 2


def test_a_worker_container_that_is_killed_ends_the_job_and_is_named(
    machine: Daemon, image: str, ssh_folder: Path
) -> None:
    endless = "import ronde, numpy\nronde.init()\nwhile True: print(ronde.allreduce(numpy.ones(4)), flush=True)"
    with worker(machine, image, ssh_folder) as container:
        host = machine.bridge_address(container)
        line = ["horovodrun", "-np", "2", "-H", f"localhost:1,{host}:1", "-p", "12345", "python", "-c", endless]
        with machine.container(*mounted(ssh_folder), image, *line) as master:
            await_line(machine, master, "[1. 1. 1. 1.]")
            machine.docker("kill", container)
            assert machine.docker("wait", master, timeout=120) != "0"
            errors = machine.result("logs", "--tail=20", master).stderr
    assert re.search(f"error: (lost {host}|rank 1 on {host})", errors), errors


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """Make a job's secret and return the option that mounts it."""
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(secrets.token_hex(32))
    return f"--volume={file}:/run/job-secret:ro"


def agents_line(port: int) -> list[str]:
    """Return the launcher's line for two waiting agents."""
    listen = ["--agents", "2", "--listen", f"0.0.0.0:{port}", "--secret-file", "/run/job-secret"]
    return ["ronde", "run", "-np", "2", *listen, *TRAINING]


@contextlib.contextmanager
def agent(
    machine: Daemon, image: str, name: str, secret: str, launcher: str, *options: str, data_port: int | None = None
) -> Iterator[str]:
    """Start a container that waits for work, if need be behind one published port, and wait until it does."""
    dial = ["agent", "--connect", launcher, "--secret-file", "/run/job-secret"]
    if data_port is not None:
        options = (*options, f"--publish={data_port}:{data_port}")
        dial += ["--data-port", f"{data_port}", "--advertise", f"{machine.address}:{data_port}"]
    with machine.container(secret, *named(name), *options, image, *dial) as container:
        await_line(machine, container, "waiting for a launcher")
        yield container


@pytest.mark.parametrize("user", [0, 1000])
def test_waiting_agents_on_one_bridge(machine: Daemon, image: str, secret: str, tmp_path: Path, user: int) -> None:
    os.chown(tmp_path / "secret", user, user)
    network = machine.docker("network", "create", "training")
    options = ["--network=training", f"--user={user}"]
    try:
        with (
            agent(machine, image, "one", secret, "chief:4000", *options),
            agent(machine, image, "two", secret, "chief:4000", *options),
        ):
            # The agents were there first: nobody knew the launcher's name yet.
            chief = ["--name=chief", secret, *options]
            done = machine.result("run", "--rm", *chief, image, *agents_line(4000), timeout=120)
    finally:
        machine.docker("network", "rm", network)
    assert_trained(done, "one", "two")


def test_waiting_agents_with_host_networking(machines: tuple[Daemon, Daemon], image: str, secret: str) -> None:
    left, right = machines
    launcher = f"{left.address}:4000"
    with (
        agent(left, image, "one", secret, launcher, "--network=host"),
        agent(right, image, "two", secret, launcher, "--network=host"),
    ):
        done = left.result("run", "--rm", "--network=host", secret, image, *agents_line(4000), timeout=120)
    assert_trained(done, "one", "two")


def test_waiting_agents_behind_two_bridges_with_one_published_port_each(
    machines: tuple[Daemon, Daemon], image: str, secret: str
) -> None:
    left, right = machines
    launcher = f"{left.address}:4000"

    with (
        agent(left, image, "one", secret, launcher, data_port=4001) as one,
        agent(right, image, "two", secret, launcher, data_port=4001) as two,
    ):
        # What makes it hard: the address that one has on its bridge is also that of the other.
        assert left.bridge_address(one) == right.bridge_address(two)
        options = ["--publish=4000:4000", secret]
        done = left.result("run", "--rm", *options, image, *agents_line(4000), timeout=120)
        assert_trained(done, "one", "two")
        assert RELAYED not in done.stderr
        # They wait again, for the next job.
        await_line(right, two, "waiting for the next")
        again = left.result("run", "--rm", *options, image, *agents_line(4000), timeout=120)
        assert_trained(again, "one", "two")


def test_a_waiting_agent_ends_when_it_is_told_to(machine: Daemon, image: str, secret: str) -> None:
    with agent(machine, image, "one", secret, "127.0.0.1:4000") as container:
        machine.docker("stop", "--time=60", container)
        assert exit_status(machine, container) != KILLED
