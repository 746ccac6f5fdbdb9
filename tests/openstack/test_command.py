"""`ronde cluster` with a cluster in a cloud: what it says, does and leaves, with recorded runs of Terraform.

test_real_terraform.py has real ones, and test_inventory.py clusters whose machines no Terraform makes.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import stat
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import FAKE_TERRAFORM, KNOWN, MACHINES, RONDE, WHEEL, Command, await_that, gone
from terminal import CTRL_C, Terminal, read
from terraform import ROOT


def test_init_writes_all_files_and_says_what_comes_next(command: Command) -> None:
    folder = command.folder
    for name in ("versions.tf", "ansible/site.yml", "image/deploy/images/cpu.Dockerfile", f"image/dist/{WHEEL}"):
        assert (folder / name).is_file(), name
    assert stat.S_IMODE((folder / "auth_data.auto.tfvars").stat().st_mode) == 0o600
    resources = (folder / "resources.auto.tfvars").read_text()
    assert 'cloud = "lab"' in resources
    assert "count       = 2" in resources
    assert "# Who may reach ssh and JupyterLab" in resources, "comments are for those who read the file"


def test_init_writes_over_nothing_and_keeps_what_users_filled_in(command: Command) -> None:
    done = command.run("init", str(command.folder), "--wheel", WHEEL)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is there already" in done.stderr
    assert "--force" in done.stderr
    (command.folder / "resources.auto.tfvars").write_text("# mine\n")
    (command.folder / "versions.tf").write_text("broken")
    done = command.run("init", str(command.folder), "--wheel", WHEEL, "--force")
    assert done.returncode == 0, done.stderr
    assert (command.folder / "resources.auto.tfvars").read_text() == "# mine\n"
    assert "required_version" in (command.folder / "versions.tf").read_text()


def test_a_password_comes_from_the_environment_or_a_file_and_never_shows(tmp_path: Path, command: Command) -> None:
    (tmp_path / "secret").write_text('hush "file"\n')
    login = ["--auth-url", "https://k:5000/v3", "--project", "p", "--user", "anna", "--wheel", WHEEL]
    for name, words, env, written in (
        ("one", [], {"OS_PASSWORD": "hush-environment"}, '"hush-environment"'),
        ("two", ["--password-file", "secret"], {}, r'"hush \"file\""'),
    ):
        done = command.run("init", name, *login, *words, env=env)
        assert done.returncode == 0, done.stderr
        assert written in (tmp_path / name / "auth_data.auto.tfvars").read_text()
        assert "hush" not in done.stdout + done.stderr
    assert subprocess.run([RONDE, "cluster", "init", "--password", "x"], capture_output=True).returncode == 2


def test_what_is_not_known_yet_is_named(tmp_path: Path, command: Command) -> None:
    done = command.run("init", "later", "--wheel", WHEEL)
    assert done.returncode == 0
    for name in ("openstack_provider.auth_url", "horovod_worker_node.flavor_name", "admin_cidr"):
        assert f"still to fill in: {name} in resources.auto.tfvars" in done.stdout
    assert (tmp_path / "later" / "versions.tf").is_file()


def written(folder: Path) -> str:
    """Return what to make and where, as `init` wrote it, without the breaks and columns of its lines."""
    return " ".join((folder / "resources.auto.tfvars").read_text().split())


def test_init_asks_for_what_it_does_not_know_and_hides_the_password(tmp_path: Path, command: Command) -> None:
    with Terminal(command, "init", "asked", "--wheel", WHEEL) as terminal:
        terminal.answer("entry of clouds.yaml to log in with (none: by address and password): ", "")
        terminal.answer("address of the cloud's Keystone, as in https://cloud.example:5000/v3: ", "https://k:5000/v3")
        terminal.answer("project: ", "research")
        terminal.answer("user: ", "anna")
        terminal.answer("flavour of the machines (openstack flavor list): ", "m2.large")
        terminal.answer("system image of the machines (openstack image list): ", "Debian 12")
        terminal.answer("203.0.113.7/32: ssh and JupyterLab are for it only: ", "198.51.100.7/32")
        terminal.answer("how many workers (1): ", "two")
        terminal.answer("two is no number\r\nhow many workers (1): ", "3")
        terminal.await_text("password of anna (is not shown): ")
        # The question comes first.
        await_that("hiding what is typed", terminal.hides)
        terminal.type('hush "typed"\n')
        assert terminal.end() == 0, terminal.shown
        assert not terminal.hides(), "whoever types next sees it"
    assert "hush" not in terminal.shown
    assert "still to fill in" not in terminal.shown
    assert f"next: ronde cluster up --folder {tmp_path}/asked" in terminal.shown
    resources = written(tmp_path / "asked")
    for words in (
        'auth_url = "https://k:5000/v3" project_name = "research"',
        'flavor_name = "m2.large" image_name = "Debian 12"',
        'count = 3 flavor_name = "m2.large"',
        'admin_cidr = "198.51.100.7/32"',
    ):
        assert words in resources
    login = tmp_path / "asked" / "auth_data.auto.tfvars"
    assert r'password  = "hush \"typed\""' in login.read_text()
    assert 'user_name = "anna"' in login.read_text()
    assert stat.S_IMODE(login.stat().st_mode) == 0o600
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"hush" in path.read_bytes()] == [login]


def test_ctrl_c_instead_of_a_password_leaves_a_terminal_that_shows_what_is_typed(
    tmp_path: Path, command: Command
) -> None:
    words = ["--auth-url", "https://k:5000/v3", "--project", "p", "--user", "anna", *MACHINES]
    with Terminal(command, "init", "left", "--wheel", WHEEL, *words) as terminal:
        terminal.await_text("password of anna (is not shown): ")
        await_that("hiding what is typed", terminal.hides)
        terminal.type(CTRL_C)
        assert terminal.end() == 130, terminal.shown
        assert not terminal.hides()
    assert not (tmp_path / "left").exists()


def test_what_an_entry_of_clouds_yaml_or_an_option_says_is_not_asked_for(tmp_path: Path, command: Command) -> None:
    with Terminal(command, "init", "entry", "--wheel", WHEEL) as terminal:
        terminal.answer("entry of clouds.yaml to log in with (none: by address and password): ", "lab")
        for end in ("(openstack flavor list): ", "(openstack image list): ", "for it only: ", "how many workers (1): "):
            terminal.answer(end, "")
        assert terminal.end() == 0, terminal.shown
    for name in ("horovod_worker_node.flavor_name", "horovod_master_node.image_name", "admin_cidr"):
        assert f"still to fill in: {name} in resources.auto.tfvars" in terminal.shown
    assert "auth_data.auto.tfvars" not in terminal.shown
    assert 'cloud = "lab"' in written(tmp_path / "entry")
    assert "count = 1" in written(tmp_path / "entry")
    with Terminal(command, "init", "options", "--wheel", WHEEL, *KNOWN) as terminal:
        assert terminal.end() == 0, terminal.shown
    assert f"next: ronde cluster up --folder {tmp_path}/options" in terminal.shown


@contextlib.contextmanager
def agent(key: Path) -> Iterator[str]:
    """Start an ssh agent with a key, and give the socket that it is asked at."""
    # A socket's name has to be short.
    with tempfile.TemporaryDirectory(prefix="agent-") as folder:
        socket = f"{folder}/socket"
        with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert socket in process.stdout.readline()
                subprocess.run(["ssh-add", "-q", key], env={**os.environ, "SSH_AUTH_SOCK": socket}, check=True)
                yield socket
            finally:
                process.kill()


def test_who_came_by_ssh_with_an_agent_is_let_in_with_a_key_of_it(tmp_path: Path, command: Command) -> None:
    key, home = tmp_path / "key", tmp_path / "home"
    home.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "anna@desk", "-f", key], check=True)
    public = (tmp_path / "key.pub").read_text().strip()
    with agent(key) as socket:
        env = {"HOME": str(home), "SSH_AUTH_SOCK": socket}
        done = command.run("init", "carried", "--wheel", WHEEL, *KNOWN, env=env)
        assert done.returncode == 0, done.stderr
        assert "the first of your ssh agent, anna@desk (else: --key)" in done.stdout
        assert f'public_key = "{public}"' in written(tmp_path / "carried")
        # One's own comes first, and Terraform finds it.
        (home / ".ssh").mkdir()
        (home / ".ssh" / "id_rsa.pub").write_text("ssh-rsa AAAA\n")
        done = command.run("init", "own", "--wheel", WHEEL, *KNOWN, env=env)
        assert done.returncode == 0, done.stderr
        assert "anna@desk" not in done.stdout
        assert "public_key" not in written(tmp_path / "own")


def test_the_installed_package_becomes_the_wheel_of_the_image(tmp_path: Path) -> None:
    (wheel,) = (ROOT / "dist").glob("ronde-*.whl")
    done = Command(tmp_path / "cluster").run("init", str(tmp_path / "cluster"), *KNOWN)
    assert done.returncode == 0, done.stderr
    (packed,) = (tmp_path / "cluster" / "image" / "dist").iterdir()
    assert packed.name == wheel.name

    def contents(path: Path) -> dict[str, bytes]:
        archive = zipfile.ZipFile(path)
        # Libraries that pip put beside the package's files are now among them.
        names = {name: re.sub(r"^[^/]+\.data/platlib/", "", name) for name in archive.namelist()}
        return {plain: archive.read(name) for name, plain in names.items() if not name.endswith("/RECORD")}

    assert contents(packed) == contents(wheel)


def test_up_shows_every_resource_with_its_time_and_ends_with_what_to_do(command: Command) -> None:
    done = command.run("up")
    assert done.returncode == 0, done.stderr
    shown = done.stderr.splitlines()
    for address in ("terraform_data.network", "terraform_data.worker[1]", "terraform_data.configure[0]"):
        (line,) = (line for line in shown if f"created   {address} " in line)
        assert line.startswith("  ✓ ")
        assert line.endswith(" s")
    assert any("✓ Write a file" in line and "changed 3 machines" in line for line in shown), done.stderr
    assert not any("Look" in line for line in shown), "tasks that changed nothing are not shown"
    for words in (
        "the cluster ronde is up: a master and 2 workers",
        "https://203.0.113.7:8888/lab",
        f"ronde cluster jupyter --token --folder {command.folder}",
        "ronde run -np 3 -H ronde-master:1,ronde-worker-1:1,ronde-worker-2:1 -p 12345 python",
    ):
        assert words in done.stdout


def test_a_terminal_shows_what_goes_on_and_takes_it_back(command: Command) -> None:
    command.tell("interrupted")
    ours, theirs = pty.openpty()
    with command.running("up", stderr=theirs) as process:
        os.close(theirs)
        shown, end = "", time.monotonic() + 120
        while "share : Mount the share\r" not in shown:
            assert time.monotonic() < end, f"it is drawn again and again, without the task: {shown[-500:]}"
            shown += read(ours)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the last one to write has gone
            while True:
                shown += read(ours)
        process.wait(timeout=60)
    os.close(ours)
    assert "  … creating  terraform_data.configure[0]" in shown
    assert "4 of 5 changes" in shown
    assert "\x1b[3A\x1b[J" in shown, "three lines are drawn anew"
    assert shown.endswith("\r\n")


def test_no_plan_is_left_and_logs_are_for_their_owner_only(command: Command) -> None:
    assert command.run("up").returncode == 0
    own = command.folder / ".ronde"
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert {path.name for path in own.iterdir()} == {"init.log", "plan.log", "apply.log", "cluster.json"}
    assert {stat.S_IMODE((own / name).stat().st_mode) for name in ("plan.log", "apply.log")} == {0o600}


def test_up_runs_ansible_every_time_and_plan_does_not(command: Command) -> None:
    command.fake("terraform", f'echo "$*" >>{command.programs}/words; exec {FAKE_TERRAFORM} "$@"')
    command.terraform = str(command.programs / "terraform")

    def planned_with(verb: str) -> str:
        (command.programs / "words").write_text("")
        done = command.run(verb)
        assert done.returncode == 0, done.stderr
        words = (command.programs / "words").read_text().splitlines()
        (line,) = (line for line in words if line.startswith("plan "))
        return line

    again = "-replace=terraform_data.configure[0]"
    assert again not in planned_with("up"), "it is made anyway"
    assert again in planned_with("up")
    assert again not in planned_with("plan")


def test_plan_makes_nothing(command: Command) -> None:
    done = command.run("plan")
    assert done.returncode == 0, done.stderr
    assert "  create   terraform_data.worker[1]\n" in done.stdout
    assert "5 changes; nothing was done yet" in done.stdout
    assert not (command.folder / "inventory.yaml").exists()


@pytest.mark.parametrize(
    ("story", "words"),
    [
        ("login", ["the cloud does not accept the login", "Authentication failed", "fix: check user_name"]),
        ("locked", ["another run holds the lock", "root@", "force-unlock"]),
    ],
)
def test_what_a_plan_finds_comes_with_cause_and_fix_and_changes_nothing(
    command: Command, story: str, words: list[str]
) -> None:
    command.tell(story)
    done = command.run("up")
    assert (done.returncode, done.stdout) == (1, "")
    for word in [*words, "error: terraform plan failed", "hint: nothing was changed"]:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("story", "words"),
    [
        ("quota", ["the project's quota does not allow it", "openstack_networking_network_v2", "openstack quota show"]),
        ("ansible", ["Mount the share on ronde-", "cannot access '/no/such/share'"]),
    ],
)
def test_what_fails_while_it_is_made_says_how_to_go_on(command: Command, story: str, words: list[str]) -> None:
    command.tell(story)
    done = command.run("up")
    assert (done.returncode, done.stdout) == (1, "")
    option = f" --folder {command.folder}"
    after = f"`ronde cluster up{option}` goes on from here, `ronde cluster down{option}` deletes it all"
    for word in [*words, "✗ failed", "error: terraform apply failed", after]:
        assert word in done.stderr, done.stderr
    assert done.stderr.count("fix: ") <= 1, "the same fix is said once"


def waits(command: Command) -> Callable[[], bool]:
    """Whether the fake waits for an interrupt."""
    return (command.folder / "fake.json").exists


def seen(command: Command) -> dict[str, int]:
    return dict(json.loads((command.folder / "fake.json").read_text()))


def test_an_interrupt_reaches_terraform_once_and_leaves_no_process(command: Command) -> None:
    command.tell("interrupted")
    with command.running("up") as process:
        await_that("the fake's wait", waits(command))
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert seen(command)["interrupts"] == 1, "a second one would make Terraform give up its state"
    assert gone(seen(command)["process"])
    assert gone(seen(command)["left"]), "what Terraform's scripts have left in the background ends, too"
    assert "stopping: terraform finishes what it has begun" in output
    assert "error: interrupted" in output
    assert "goes on from here" in output


def test_terraform_stops_and_writes_its_state_if_the_command_is_killed(command: Command) -> None:
    command.tell("interrupted")
    with command.running("up") as process:
        await_that("the fake's wait", waits(command))
        left = seen(command)["left"]
        process.kill()
        process.wait()
        await_that("Terraform's end", lambda: gone(seen(command)["process"]))
    os.kill(left, signal.SIGKILL)
    assert seen(command)["interrupts"] == 1
    command.tell("up")
    done = command.run("up")
    assert done.returncode == 0
    assert "warning: a run was cut short" in done.stderr


# Finds a port that Terraform does not know of, and deletes it.
LEFTOVERS = """
import pathlib, sys
lost = pathlib.Path("lost")
if "--delete" in sys.argv:
    lost.unlink()
elif lost.exists():
    print("port ronde-master (1)")
    sys.exit(1)
"""


def leave_a_port(command: Command) -> Path:
    """Let the cloud have a port that Terraform does not know of; return what stands for it."""
    (command.folder / "leftovers.py").write_text(LEFTOVERS)
    (command.folder / "lost").touch()
    return command.folder / "lost"


def interrupt_up(command: Command) -> None:
    """Interrupt `up` while it makes something."""
    command.tell("interrupted")
    with command.running("up") as process:
        await_that("the fake's wait", waits(command))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    command.tell("up")


def test_what_an_interrupted_run_has_lost_is_deleted_if_that_is_agreed_to(command: Command) -> None:
    lost = leave_a_port(command)
    interrupt_up(command)
    refused = command.run("up")
    assert refused.returncode == 1
    assert "lost     port ronde-master (1)" in refused.stderr
    assert "--yes" in refused.stderr
    assert command.run("up", "--yes").returncode == 0
    assert not lost.exists()
    assert "unfinished" not in command.run("up").stderr
    assert "the cloud has nothing of it any more" in command.run("down", "--yes").stdout


def test_down_deletes_what_an_interrupted_run_has_lost_before_all_else(command: Command) -> None:
    lost = leave_a_port(command)
    interrupt_up(command)
    # Terraform fails as long as the port is in its network.
    command.fake("terraform", f'[ "$1" = plan ] && [ -e {lost} ] && exit 1\nexec {FAKE_TERRAFORM} "$@"')
    command.terraform = str(command.programs / "terraform")
    (command.folder / "terraform.tfstate").write_text("terraform_data.network\n")
    refused = command.run("down")
    assert refused.returncode == 1
    assert "lost     port ronde-master (1)" in refused.stderr
    assert lost.exists()
    done = command.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert not lost.exists()
    assert "the cloud has nothing of it any more" in done.stdout


def test_a_run_that_fails_after_an_interrupted_one_does_not_forget_what_that_lost(command: Command) -> None:
    interrupt_up(command)
    command.tell("quota")
    assert "warning: a run was cut short" in command.run("up").stderr
    assert "warning: a run was cut short" in command.run("up").stderr
    lost = leave_a_port(command)
    done = command.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert not lost.exists()
    assert "Terraform has nothing to delete" in done.stdout
    assert "there is nothing to delete" in command.run("down", "--yes").stdout


def test_what_only_carries_the_cluster_s_name_is_listed_and_never_deleted(command: Command) -> None:
    assert command.run("up").returncode == 0
    other = leave_a_port(command)
    done = command.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert "warning: these carry the cluster's mark, and Terraform does not know of them" in done.stderr
    assert "other    port ronde-master (1)" in done.stderr
    assert "python3 leftovers.py --delete" in done.stderr
    assert "was left alone" in done.stdout
    assert other.exists()


def test_down_lists_asks_deletes_and_looks_again(command: Command) -> None:
    assert command.run("up").returncode == 0
    done = command.run("down")
    assert done.returncode == 1
    assert "delete   terraform_data.network" in done.stderr
    assert "hint: if that is meant: --yes" in done.stderr
    assert (command.folder / "inventory.yaml").exists()
    remains = command.run("down", "--yes", env={"FAKE_REMAINS": "openstack_networking_port_v2.master\n"})
    assert remains.returncode == 1
    assert "openstack_networking_port_v2.master is still there" in remains.stderr
    done = command.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert "deleted" in done.stdout
    assert (command.folder / "versions.tf").exists(), "the folder stays"
    assert "there is nothing to delete" in command.run("down", "--yes").stdout
    assert "no cluster is up" in command.run("status").stderr


# What the provider says of a flavour that the cloud has no more, and of a password that has changed.
NO_FLAVOR = ("Your query returned no results.", "data.openstack_compute_flavor_v2.master")
NO_LOGIN = ("Authentication failed", "data.openstack_identity_auth_scope_v3.project")


def fail_to_ask(command: Command, summary: str, address: str) -> None:
    """Let the cloud be asked in vain when a deletion is planned."""
    diagnostic = {"severity": "error", "summary": summary, "detail": "", "address": address}
    said = command.programs / "said.jsonl"
    said.write_text(json.dumps({"type": "diagnostic", "diagnostic": diagnostic}) + "\n")
    command.fake(
        "terraform",
        f'echo "$*" >>{command.programs}/words\n'
        f'case "$*" in *-refresh=false*) ;; plan*-destroy*) cat {said}; exit 1 ;; esac\nexec {FAKE_TERRAFORM} "$@"',
    )
    command.terraform = str(command.programs / "terraform")


def test_down_needs_nothing_of_the_cloud_but_what_was_made(command: Command) -> None:
    assert command.run("up").returncode == 0
    fail_to_ask(command, *NO_FLAVOR)
    done = command.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert "warning: the plan failed: the cloud has no such flavour" in done.stderr
    assert "(-refresh=false)" in done.stderr
    assert "delete   terraform_data.network" in done.stderr
    assert "deleted" in done.stdout


def test_down_does_not_go_on_without_a_login(command: Command) -> None:
    assert command.run("up").returncode == 0
    fail_to_ask(command, *NO_LOGIN)
    done = command.run("down", "--yes")
    assert done.returncode == 1
    assert "the cloud does not accept the login" in done.stderr
    assert "nothing was changed" in done.stderr
    assert "refresh" not in (command.programs / "words").read_text()


def test_scale_changes_the_number_of_workers_and_nothing_else(command: Command) -> None:
    before = (command.folder / "resources.auto.tfvars").read_text()
    done = command.run("scale", "5")
    assert done.returncode == 0, done.stderr
    assert "workers: 2 → 5" in done.stderr
    after = (command.folder / "resources.auto.tfvars").read_text()
    assert after == before.replace("count       = 2", "count       = 5")


def test_a_scale_that_fails_or_is_refused_keeps_the_old_number(command: Command, tmp_path: Path) -> None:
    before = (command.folder / "resources.auto.tfvars").read_text()
    command.tell("login")
    assert "nothing was changed" in command.run("scale", "5").stderr
    assert (command.folder / "resources.auto.tfvars").read_text() == before
    # A plan that replaces a worker that stays.
    resource = {"addr": "openstack_compute_instance_v2.worker[0]"}
    event = {"type": "planned_change", "change": {"resource": resource, "action": "replace"}}
    (tmp_path / "plan.jsonl").write_text(json.dumps(event) + "\n")
    command.env["FAKE_TERRAFORM"] = str(tmp_path)
    refused = command.run("scale", "1")
    assert refused.returncode == 1
    assert "replace  openstack_compute_instance_v2.worker[0]" in refused.stderr
    assert "if that is meant: --yes" in refused.stderr
    assert (command.folder / "resources.auto.tfvars").read_text() == before


def test_up_says_where_a_cluster_in_a_cloud_is_told_of_its_containers(command: Command) -> None:
    (command.folder.parent / "image.tar").touch()
    done = command.run("up", "--framework", "torch", "--image", "image.tar")
    assert done.returncode == 2
    assert f'image = "{command.folder.parent}/image.tar" and framework = "torch"' in done.stderr
    assert f"{command.folder}/resources.auto.tfvars" in done.stderr
    assert not (command.folder / ".ronde" / "plan.log").exists()


def test_init_says_what_it_does_not_write_beside_an_entry_of_clouds_yaml(tmp_path: Path, command: Command) -> None:
    (tmp_path / "image.tar").touch()
    words = ["--project", "p", "--region", "r2", "--image", "image.tar"]
    done = command.run("init", "new", "--wheel", WHEEL, *KNOWN, *words)
    assert done.returncode == 0, done.stderr
    assert "not written: --project, or" in done.stdout
    assert "the entry lab of clouds.yaml" in done.stdout
    resources = (tmp_path / "new" / "resources.auto.tfvars").read_text()
    assert 'region = "r2"' in resources
    assert f'image = "{tmp_path}/image.tar"' in resources, "Ansible runs in the cluster's folder"


def test_without_ansible_no_machine_is_made(command: Command) -> None:
    (command.programs / "ansible-playbook").unlink()
    alone = {"PATH": str(command.programs)}
    done = command.run("up", env=alone)
    assert done.returncode == 1
    assert "Ansible is not installed here" in done.stderr
    assert "pip install -r" in done.stderr
    assert not (command.folder / ".ronde" / "plan.log").exists()


def test_a_folder_that_has_no_cluster_says_how_to_make_one(tmp_path: Path) -> None:
    done = Command(tmp_path / "none").run("up")
    assert done.returncode == 1
    assert f"hint: make one: ronde cluster init {tmp_path / 'none'}" in done.stderr
