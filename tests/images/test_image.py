"""One container: the shell, the modes, the ssh server, users, health, and what is not inside. Needs root."""

from __future__ import annotations

import io
import json
import os
import re
import select
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from building import IMAGES, Builder
from containers import KILLED, SSHD_AS_USERS_START_IT, await_server, exit_status
from daemon import Daemon

from waiting import eventually

PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{32}")


def login(machine: Daemon, image: str, folder: Path, server: str, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a server by ssh from a fresh container, with the folder as its /root/.ssh."""
    mount = f"{folder}:/root/.ssh"
    ssh = ["ssh", "-o", "BatchMode=yes", "-p", "12345", server, command]
    return machine.result("run", "--rm", "--volume", mount, image, *ssh)


def test_an_interactive_container_is_a_shell_in_the_examples(machine: Daemon, image: str) -> None:
    terminal, inner = os.openpty()
    with machine.popen("run", "-it", "--rm", image, stdin=inner, stdout=inner, stderr=inner) as process:
        os.close(inner)
        os.write(terminal, b'echo "[$PWD]" ; ls ; exit\n')
        seen = b""
        while select.select([terminal], [], [], 60)[0]:
            try:
                seen += os.read(terminal, 4096)
            except OSError:
                # How a terminal says that its last user has left.
                break
        assert process.wait(60) == 0
    os.close(terminal)
    assert b"[/examples]" in seen
    assert b"digits.py" in seen


def test_any_other_command_is_executed_as_it_is(machine: Daemon, image: str) -> None:
    done = machine.result("run", "--rm", image, "python", "-c", "import sys; sys.exit('two words')")
    assert (done.returncode, done.stderr) == (1, "two words\n")
    assert machine.result("run", "--rm", image, "no-such-command").returncode == 127


@pytest.mark.parametrize("options", [[], ["--user", "1000"], ["--user", "4711:0"]], ids=["root", "user", "nameless"])
def test_examples_run_offline_and_need_no_extra_options(machine: Daemon, image: str, options: list[str]) -> None:
    run = ["ronde", "run", "-np", "2", "python", "digits.py"]
    done = machine.result("run", "--rm", "--network=none", *options, image, *run)
    assert done.returncode == 0, done.stderr
    assert "accuracy on 2 ranks" in done.stdout


def test_there_is_no_key_and_no_secret_of_the_build_in_any_layer(builder: Builder, image: str, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    builder.daemon.docker("save", "--output", archive, image)
    named, held = [], []
    with tarfile.open(archive) as whole:
        # The first is the base, which is not ours: in Debian a library carries a key to test itself with.
        layers = json.load(_opened(whole, "manifest.json"))[0]["Layers"][1:]
        for layer in layers:
            with tarfile.open(fileobj=_opened(whole, layer)) as files:
                for file in files:
                    if re.search(r"ssh_host_.*key|/\.ssh/|authorized_keys$|run/secrets/.|etc/pip\.conf$", file.name):
                        named.append(file.name)
                    if file.isfile() and PRIVATE_KEY.search(_opened(files, file).read()):
                        held.append(file.name)
    archive.unlink()
    assert len(layers) > 5
    assert named == []
    assert held == []


def _opened(archive: tarfile.TarFile, member: str | tarfile.TarInfo) -> io.BufferedReader:
    file = archive.extractfile(member)
    assert isinstance(file, io.BufferedReader)
    return file


def test_the_ssh_server_runs_as_users_start_it(machine: Daemon, image: str, ssh_folder: Path) -> None:
    mount = f"{ssh_folder}:/root/.ssh"
    with machine.container("--volume", mount, image, *SSHD_AS_USERS_START_IT) as worker:
        await_server(machine, worker)
        server = machine.bridge_address(worker)
        # Sessions find the image's programs, and only a key opens them.
        done = login(machine, image, ssh_folder, server, "command -v ronde python; id -un")
        assert done.stdout.split() == ["/usr/local/bin/ronde", "/usr/local/bin/python", "root"], done.stderr
        done = login(machine, image, ssh_folder / "nothing-in-it", server, "true")
        assert done.returncode == 255
        assert "Permission denied (publickey)" in done.stderr


def test_sessions_find_programs_where_the_container_does(machine: Daemon, image: str, ssh_folder: Path) -> None:
    path = "/opt/my tools/bin:/usr/local/bin:/usr/sbin:/usr/bin:/bin"
    options = ["--env", f"PATH={path}", "--env", "LD_LIBRARY_PATH=/opt/lib"]
    with machine.container("--volume", f"{ssh_folder}:/root/.ssh", *options, image, "sshd", "-p", "12345") as worker:
        await_server(machine, worker)
        done = login(machine, image, ssh_folder, machine.bridge_address(worker), 'echo "$PATH|$LD_LIBRARY_PATH"')
        assert done.stdout == f"{path}|/opt/lib\n", done.stderr


def _readable_by_all(folder: Path) -> None:
    folder.chmod(0o777)
    for file in folder.iterdir():
        file.chmod(0o666)


def _of_another_user(folder: Path) -> None:
    for file in (folder, *folder.iterdir()):
        os.chown(file, 1234, 1234)


@pytest.mark.parametrize("spoil", [_readable_by_all, _of_another_user])
def test_a_mounted_ssh_folder_may_have_any_owner_and_modes(
    machine: Daemon, image: str, ssh_folder: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(ssh_folder)
    before = [(path.stat().st_mode, path.stat().st_uid) for path in sorted(ssh_folder.iterdir())]
    with machine.container("--volume", f"{ssh_folder}:/root/.ssh", image, *SSHD_AS_USERS_START_IT) as worker:
        await_server(machine, worker)
        done = login(machine, image, ssh_folder, machine.bridge_address(worker), "echo in")
        assert done.stdout == "in\n", done.stderr
        assert "WARNING" not in done.stderr
    # It is the user's folder: nothing in it was changed, and nothing added.
    assert [(path.stat().st_mode, path.stat().st_uid) for path in sorted(ssh_folder.iterdir())] == before


def test_a_configuration_that_ssh_will_refuse_is_named(machine: Daemon, image: str, ssh_folder: Path) -> None:
    config = ssh_folder / "config"
    config.write_text("Host *\n")
    config.chmod(0o666)
    done = machine.result("run", "--rm", "--volume", f"{ssh_folder}:/root/.ssh", image, "true")
    assert "ssh will refuse /root/.ssh/config" in done.stderr
    config.chmod(0o600)
    assert machine.result("run", "--rm", "--volume", f"{ssh_folder}:/root/.ssh", image, "true").stderr == ""


def test_a_key_with_a_passphrase_that_others_may_read_is_named_and_nobody_is_asked(
    machine: Daemon, image: str, tmp_path: Path
) -> None:
    key = tmp_path / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    key.chmod(0o644)
    done = machine.result("run", "--rm", "--volume", f"{tmp_path}:/root/.ssh", image, "echo", "on", timeout=60)
    assert done.stdout == "on\n"
    assert "ssh cannot use /root/.ssh/id_ed25519" in done.stderr


def _fingerprint(machine: Daemon, container: str) -> str:
    return machine.docker("exec", container, "bash", "-c", "ssh-keyscan -p 12345 localhost 2>/dev/null | cut -d' ' -f3")


def test_every_container_makes_its_own_host_key(machine: Daemon, image: str) -> None:
    with (
        machine.container(image, "sshd", "-p", "12345") as one,
        machine.container(image, "sshd", "-p", "12345") as two,
    ):
        await_server(machine, one)
        await_server(machine, two)
        first, second = _fingerprint(machine, one), _fingerprint(machine, two)
        assert first.startswith("AAAA")
        assert first != second
        # A server that is started again in the same container keeps its key.
        machine.docker("restart", one)
        await_server(machine, one)
        assert _fingerprint(machine, one) == first


@pytest.mark.parametrize("place", ["the key", "the folder", "the cluster's folder"])
@pytest.mark.parametrize("user", ["0", "1000"])
def test_mounted_host_keys_are_used(machine: Daemon, image: str, tmp_path: Path, place: str, user: str) -> None:
    name = "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    for path in (tmp_path, tmp_path / name):
        os.chown(path, int(user), int(user))
    mount, kept = {
        "the key": (f"{tmp_path / name}:/etc/ssh/{name}:ro", [f"/etc/ssh/{name}"]),
        "the folder": (f"{tmp_path}:/etc/ssh:ro", [f"/etc/ssh/{name}", f"/etc/ssh/{name}.pub"]),
        "the cluster's folder": (f"{tmp_path}:/etc/ronde:ro", []),
    }[place]
    with machine.container("--user", user, "--volume", mount, image, "sshd", "-p", "12345") as worker:
        await_server(machine, worker)
        public = (tmp_path / f"{name}.pub").read_text().split()[1]
        assert _fingerprint(machine, worker) == public
        found = machine.docker("exec", worker, "sh", "-c", "ls /etc/ssh/ssh_host_* /run/ronde/*/ssh_host_* || true")
        assert found.split() == kept


def test_a_host_key_shows_the_certificate_beside_it(machine: Daemon, image: str, ssh_folder: Path) -> None:
    given = ssh_folder / "given"
    given.mkdir()
    for name in ("authority", "ssh_host_ed25519_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", given / name], check=True)
    sign = ["ssh-keygen", "-q", "-h", "-s", "authority", "-I", "test", "-n", "gpu2", "ssh_host_ed25519_key.pub"]
    subprocess.run(sign, cwd=given, check=True)
    (ssh_folder / "known_hosts").write_text(f"@cert-authority * {(given / 'authority.pub').read_text()}")
    strict = "-o StrictHostKeyChecking=yes -o UserKnownHostsFile=/root/.ssh/known_hosts -o BatchMode=yes"
    script = f"""
        /usr/sbin/sshd -p 12345
        ssh {strict} -p 12345 -o HostKeyAlias=gpu2 localhost echo known
        ssh {strict} -p 12345 localhost echo known by another name
    """
    volumes = [f"--volume={ssh_folder}:/root/.ssh", f"--volume={given}:/etc/ronde:ro"]
    done = machine.result("run", "--rm", *volumes, image, "bash", "-c", script)
    assert done.stdout == "known\n", done.stderr
    assert "Host key verification failed" in done.stderr


def test_a_changed_host_key_is_refused_within_one_container(machine: Daemon, image: str, ssh_folder: Path) -> None:
    script = """
        /usr/sbin/sshd -p 12345
        ssh -o BatchMode=yes -p 12345 localhost echo first
        kill "$(cat /run/ronde/sshd.0.pid)"
        rm /etc/ssh/ssh_host_*; /usr/sbin/sshd -p 12345
        ssh -o BatchMode=yes -p 12345 localhost echo second
    """
    done = machine.result("run", "--rm", "--volume", f"{ssh_folder}:/root/.ssh", image, "bash", "-c", script)
    assert done.stdout == "first\n"
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_a_user_other_than_root_has_a_shell_an_agent_and_a_server(
    machine: Daemon, image: str, ssh_folder: Path
) -> None:
    as_user = ["--user", "1000"]
    assert machine.docker("run", "--rm", *as_user, image, "bash", "-c", "id -un; pwd; touch here").split() == [
        "ronde",
        "/examples",
    ]
    for path in (ssh_folder, *ssh_folder.iterdir()):
        os.chown(path, 1000, 1000)
    mount = f"{ssh_folder}:/home/ronde/.ssh"
    with machine.container(*as_user, "--volume", mount, image, "sshd", "-p", "2222") as worker:
        await_server(machine, worker)
        server = machine.bridge_address(worker)
        ssh = ["ssh", "-o", "BatchMode=yes", "-p", "2222", server, "id -un; command -v ronde"]
        done = machine.result("run", "--rm", *as_user, "--volume", mount, image, *ssh)
        assert done.stdout.split() == ["ronde", "/usr/local/bin/ronde"], done.stderr


def test_a_server_for_a_user_without_a_name_says_what_to_do(machine: Daemon, image: str) -> None:
    done = machine.result("run", "--rm", "--user", "4711", image, "sshd", "-p", "2222")
    assert done.returncode == 1
    assert "user number 4711 has no name" in done.stderr
    assert "--user 1000" in done.stderr


def test_an_image_can_be_built_to_run_as_a_user(builder: Builder) -> None:
    image = builder.build("cpu", "ronde:user", FRAMEWORK="none", USER="1000")
    run = ["run", "--rm", "--network=none", image, "bash", "-c", "id -u; cd; pwd"]
    assert builder.daemon.docker(*run).split() == ["1000", "/home/ronde"]


def test_a_server_in_the_foreground_ends_when_told_to(machine: Daemon, image: str) -> None:
    with machine.container(image, "sshd", "-p", "12345") as worker:
        await_server(machine, worker)
        machine.docker("stop", "--time=60", worker)
        assert exit_status(machine, worker) != KILLED


def test_a_server_runs_in_a_container_that_is_read_only(machine: Daemon, image: str, ssh_folder: Path) -> None:
    options = ["--read-only", "--tmpfs=/run", "--tmpfs=/tmp", "--volume", f"{ssh_folder}:/root/.ssh:ro"]
    with machine.container(*options, image, "sshd", "-p", "12345") as worker:
        await_server(machine, worker)
        done = login(machine, image, ssh_folder, machine.bridge_address(worker), "echo in")
        assert done.stdout == "in\n", done.stderr


def test_health_follows_the_ssh_server(machine: Daemon, image: str) -> None:
    often = ["--health-interval=300ms", "--health-retries=1", "--health-start-period=0s"]
    with machine.container(*often, image, *SSHD_AS_USERS_START_IT) as worker:

        def health() -> str:
            return machine.docker("inspect", "--format", "{{.State.Health.Status}}", worker)

        await_server(machine, worker)
        eventually(lambda: health() == "healthy", "the container to be healthy")
        machine.docker("exec", worker, "bash", "-c", 'kill "$(cat /run/ronde/sshd.0.pid)"')
        eventually(lambda: health() == "unhealthy", "the container to be unhealthy")


def test_the_agent_mode_is_the_verb_of_the_program(machine: Daemon, image: str) -> None:
    done = machine.result("run", "--rm", image, "agent", "--help")
    assert done.returncode == 0, done.stderr
    assert "--connect" in done.stdout


def test_jupyter_is_missed_in_plain_words(machine: Daemon, image: str) -> None:
    done = machine.result("run", "--rm", image, "jupyter")
    assert done.returncode == 1
    assert "--build-arg JUPYTER=yes" in done.stderr


def test_the_manager_is_the_programs_and_the_package_that_they_deliver(
    machine: Daemon, image: str, manager: str
) -> None:
    version = machine.docker("run", "--rm", manager, "--version")
    assert version.startswith("ronde ")
    assert version == machine.docker("run", "--rm", image, "ronde", "--version")
    assert machine.docker("inspect", "--format", "{{.Config.User}}", manager) == "65532:65532"
    assert "ronde kube install" in machine.docker("run", "--rm", manager, "kube", "install", "--help")
    # Into a folder of whoever the container runs as, in an image that nobody writes to.
    delivered = ["run", "--rm", "--read-only", "--tmpfs", "/ronde:mode=1777,exec", "--entrypoint", "sh", manager, "-c"]
    look = "ronde kube deliver /ronde && cd /ronde && ls bin lib/python3/site-packages/* && bin/ronde --version"
    files = machine.docker(*delivered, look).splitlines()
    assert {"ronde", "__init__.py", "_core.abi3.so", "libronde_jax.so", "torch"} <= set(files)
    assert files[-1] == version


def test_the_images_for_processors_and_gpus_differ_only_in_base_and_device() -> None:
    bodies = []
    for device in ("cpu", "gpu"):
        lines = (IMAGES / f"{device}.Dockerfile").read_text().splitlines()
        body = lines[lines.index("FROM ${BASE}") :]
        bodies.append([line.replace(f"framework {device} ", "framework DEVICE ") for line in body])
    assert bodies[0] == bodies[1]
