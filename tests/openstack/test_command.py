"""`ronde cluster`: what it says, does and leaves, with recorded runs of Terraform and real ones without a cloud."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import stat
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from command import FAKE_TERRAFORM, RONDE, Command, await_that, gone
from fake_cloud import PASSWORD, USER, FakeCloud
from record import MAIN
from terraform import ROOT, environment, program

WHEEL = "ronde-0.1.0-py3-none-any.whl"
MACHINES = ["--workers", "2", "--flavor", "small", "--os-image", "debian-12", "--admin-cidr", "203.0.113.7/32"]
KNOWN = ["--cloud", "lab", *MACHINES]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Return a cluster folder that `init` has written; Ansible is there, but never run."""
    (tmp_path / WHEEL).write_bytes(b"a wheel")
    made = Command(tmp_path / "cluster")
    made.fake("ansible-playbook", "exit 99")
    done = made.run("init", str(made.folder), "--wheel", WHEEL, *KNOWN)
    assert done.returncode == 0, done.stderr
    return made


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


def read(terminal: int) -> str:
    """Return what a terminal shows next."""
    assert select.select([terminal], [], [], 60)[0], "nothing came"
    return os.read(terminal, 4096).decode()


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


INVENTORY = """
all:
  vars: {cluster_name: lab, public_address: 127.0.0.1}
  children:
    master: {hosts: {lab-master: {ansible_connection: local, container: c1}}}
    workers: {hosts: {lab-worker-1: {ansible_connection: local, container: c2, gpus: 2}}}
"""

# Runs in place what would run in a container; a file named after the container stops it.
DOCKER = """
echo "docker $*" >>"$(dirname "$0")/docker.log"
case $1 in
inspect) [ -e "$(dirname "$0")/$4.down" ] && exit 1; echo running ;;
exec)
    shift
    while :; do case $1 in --user) shift 2 ;; -*) shift ;; *) break ;; esac; done
    shift
    exec "$@"
    ;;
esac
"""


@pytest.fixture
def inventory(command: Command) -> Command:
    """Return a cluster of machines that were there, which all are this one."""
    command.fake("ansible-playbook", 'printf "%s\\n" "$@" >"$(dirname "$0")/ansible.log"')
    command.fake("docker", DOCKER)
    hosts = command.folder.parent / "hosts.yaml"
    hosts.write_text(INVENTORY)
    done = command.run("up", "--inventory", str(hosts), "--framework", "torch")
    assert done.returncode == 0, done.stderr
    return command


def test_up_with_an_inventory_runs_only_ansible(inventory: Command) -> None:
    words = (inventory.programs / "ansible.log").read_text().splitlines()
    assert words[:3] == ["-i", str(inventory.folder.parent / "hosts.yaml"), "ansible/site.yml"]
    assert json.loads(words[4]) == {"framework": "torch", "image_context": str(inventory.folder / "image")}
    assert not (inventory.folder / ".ronde" / "plan.log").exists()
    assert inventory.run("down", "--yes").returncode == 0
    assert (inventory.programs / "ansible.log").read_text().splitlines()[2] == "ansible/remove.yml"


def test_an_inventory_that_only_ansible_can_read_is_refused_before_anything_is_done(command: Command) -> None:
    command.fake("ansible-playbook", 'touch "$(dirname "$0")/ansible.log"')
    hosts = command.folder.parent / "hosts.ini"
    hosts.write_text("[master]\nm1 ansible_host=10.0.0.1\n[workers]\nw[1:3]\n")
    new = Command(command.folder.parent / "new")
    done = new.run("up", "--inventory", str(hosts), "--wheel", WHEEL)
    assert done.returncode == 1
    assert f"cannot use the inventory {hosts}: it is no inventory in YAML" in done.stderr
    assert f"ansible-inventory -i {hosts} --list --yaml --export" in done.stderr
    assert not new.folder.exists()
    assert not (new.programs / "ansible.log").exists()


def test_a_project_with_playbooks_of_its_own_is_no_cluster_folder(command: Command) -> None:
    command.fake("ansible-playbook", 'pwd >"$(dirname "$0")/ansible.log"')
    hosts = command.folder.parent / "hosts.yaml"
    hosts.write_text(INVENTORY)
    own = Command(command.folder.parent / "infrastructure")
    site = own.folder / "ansible" / "site.yml"
    site.parent.mkdir(parents=True)
    site.write_text("- hosts: all\n")
    done = own.run("up", "--inventory", str(hosts), "--wheel", WHEEL)
    assert done.returncode == 2
    assert "is no cluster folder, and has a file ansible/site.yml of its own" in done.stderr
    # From inside, the cluster gets a folder of the usual name.
    words = [RONDE, "cluster", "up", "--inventory", hosts, "--wheel", f"../{WHEEL}"]
    done = subprocess.run(words, cwd=own.folder, env=own.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (own.programs / "ansible.log").read_text() == f"{own.folder}/ronde-cluster\n"
    assert site.read_text() == "- hosts: all\n"


def test_what_terraform_does_is_refused_where_it_has_no_part(inventory: Command) -> None:
    for words, fix in ((["plan"], "ronde cluster up --folder"), (["scale", "3"], "hosts.yaml, then: ronde cluster up")):
        done = inventory.run(*words)
        assert done.returncode == 2
        assert "the machines of this cluster are those of an inventory" in done.stderr
        assert fix in done.stderr


def test_up_local_makes_a_folder_and_a_cluster_in_it(command: Command) -> None:
    inventory = command.folder.parent / "new" / "inventory.yaml"
    command.fake(
        "ansible-playbook",
        f'printf "%s\\n" "$@" >"$(dirname "$0")/ansible.log"; cat >{inventory} <<"END"\n{INVENTORY}\nEND',
    )
    new = Command(command.folder.parent / "new")
    done = new.run("up", "--local", "3", "--wheel", WHEEL)
    assert done.returncode == 0, done.stderr
    playbook, _, variables = (new.programs / "ansible.log").read_text().splitlines()
    assert playbook == "ansible/local.yml"
    told = {"local_machines": 3, "local_state": "present", "local_inventory": str(inventory)}
    assert told.items() <= json.loads(variables).items()
    done = new.run("down", "--local", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"ronde cluster up --local 3 --folder {new.folder} makes it anew" in done.stdout
    assert json.loads((new.programs / "ansible.log").read_text().splitlines()[2])["local_state"] == "absent"


def test_image_and_framework_are_remembered_until_others_are_named(inventory: Command) -> None:
    def told(*words: str) -> dict[str, str]:
        done = inventory.run("up", *words)
        assert done.returncode == 0, done.stderr
        variables = json.loads((inventory.programs / "ansible.log").read_text().splitlines()[4])
        return {name: value for name, value in variables.items() if name != "image_context"}

    archive = inventory.folder.parent / "image.tar"
    archive.touch()
    assert told() == {"framework": "torch"}
    assert told("--image", "image.tar") == {"framework": "torch", "image": str(archive)}, "from where it was typed"
    assert told() == {"framework": "torch", "image": str(archive)}
    assert told("--framework", "tensorflow") == {"framework": "tensorflow"}
    assert "--framework tensorflow --folder" in inventory.run("down", "--yes").stdout
    hosts = inventory.folder.parent / "hosts.yaml"
    assert told("--inventory", str(hosts)) == {}, "a new cluster knows nothing of the old one"


def assert_keeps_its_cluster(command: Command, inventory: Path, which: str) -> None:
    """Check that its folder takes neither containers of this machine nor the machines of an inventory."""
    inventory.write_text(INVENTORY)
    for words in (["--local", "2"], ["--inventory", str(inventory)]):
        done = command.run("up", *words)
        assert done.returncode == 2
        assert which in done.stderr
        assert f"ronde cluster down --folder {command.folder}" in done.stderr


@pytest.mark.parametrize(
    ("name", "contents", "which"),
    [
        (
            "terraform.tfstate",
            '{"version": 4, "resources": [{"mode": "managed", "type": "terraform_data"}]}',
            "has a cluster in a cloud already",
        ),
        (".ronde/applying", "", "was cut short and may have left something in the cloud"),
        ("inventory.yaml", INVENTORY, "has a cluster in a cloud already"),
    ],
)
def test_a_folder_does_not_forget_a_cluster_in_a_cloud(command: Command, name: str, contents: str, which: str) -> None:
    (command.folder / ".ronde").mkdir(exist_ok=True)
    (command.folder / name).write_text(contents)
    assert_keeps_its_cluster(command, command.folder.parent / "hosts.yaml", which)


def test_a_cluster_becomes_none_of_another_kind_before_it_is_taken_down(inventory: Command) -> None:
    hosts = inventory.folder.parent / "hosts.yaml"
    others = inventory.folder.parent / "others.yaml"
    assert_keeps_its_cluster(inventory, others, "has a cluster on the machines of an inventory already")
    assert inventory.run("up", "--inventory", str(hosts)).returncode == 0, "the same one"
    done = inventory.run("down", "--yes")
    again = f"ronde cluster up --inventory {hosts} --framework torch --folder {inventory.folder}"
    assert f"{again} makes it anew" in done.stdout
    assert inventory.run("up", "--inventory", str(others)).returncode == 0


def test_run_starts_a_job_on_all_machines_and_passes_its_status_on(inventory: Command) -> None:
    inventory.fake("ronde", 'echo "ronde $*"; exit 7')
    done = inventory.run("run", "--", "python", "a b.py")
    assert done.returncode == 7
    assert done.stdout == "ronde run -np 3 -H lab-master:1,lab-worker-1:2 -p 12345 python a b.py\n"
    assert "-np 2 " in inventory.run("run", "-np", "2", "--", "python", "a.py").stdout


OVER_SSH = """
all:
  vars: {cluster_name: lab, public_address: 127.0.0.1, ssh_port: 2200}
  children:
    master: {hosts: {lab-master: {ansible_host: lab-master}}}
    workers: {hosts: {lab-worker-1: {ansible_host: lab-worker-1}}}
"""

# Runs here what would run on a machine; a file named after the machine makes it unreachable.
SSH = """
for word; do
    if [ -e "$(dirname "$0")/$word.off" ]; then
        echo "channel 0: open failed: connect failed: No route to host" >&2
        exit 255
    fi
done
exec bash -c "${@: -1}"
"""


@pytest.fixture
def over_ssh(inventory: Command) -> Command:
    """Return a cluster of machines that are reached by ssh."""
    inventory.fake("ssh", SSH)
    inventory.fake("sudo", 'shift; exec "$@"')
    (inventory.folder.parent / "hosts.yaml").write_text(OVER_SSH)
    return inventory


def test_a_job_that_ends_like_an_ssh_that_fails_is_told_apart_from_it(over_ssh: Command, inventory: Command) -> None:
    over_ssh.fake("ronde", 'echo "ronde $*"; exit 255')
    done = over_ssh.run("run", "--", "python", "a.py")
    assert (done.returncode, done.stderr) == (255, "")
    assert "-p 2200 python a.py" in done.stdout, "the inventory says which port"
    (over_ssh.programs / "lab-master.off").touch()
    done = over_ssh.run("run", "--", "python", "a.py")
    assert (done.returncode, done.stdout) == (255, "")
    assert "error: the master was not reached" in done.stderr
    # Nor is ssh asked about a container of this machine.
    (inventory.folder.parent / "hosts.yaml").write_text(INVENTORY)
    done = inventory.run("run", "--", "python", "a.py")
    assert (done.returncode, done.stderr) == (255, "")


def test_status_does_not_blame_the_way_to_the_master_for_a_worker_that_is_off(over_ssh: Command) -> None:
    (over_ssh.programs / "lab-worker-1.off").touch()
    found = json.loads(over_ssh.run("status", "--no-smoke", "--json").stdout)
    (off,) = (problem for problem in found["problems"] if "lab-worker-1" in problem["what"])
    assert "No route to host" in off["what"]
    assert off["fix"].startswith("look whether lab-worker-1 is on")
    assert "tfvars" not in json.dumps(found)


def test_run_passes_signals_on(inventory: Command) -> None:
    inventory.fake("ronde", "trap 'echo interrupted; exit 42' INT; echo ready; while :; do sleep 0.05; done")
    with inventory.running("run", "--", "train") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert process.returncode == 42


def test_a_job_ends_if_the_command_is_killed(inventory: Command, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    inventory.fake("ronde", f"trap 'touch {ended}; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    with inventory.running("run", "--", "train") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        await_that("the job's end", ended.exists)


def test_ssh_and_the_token_reach_the_right_container(inventory: Command) -> None:
    assert inventory.run("ssh", "worker-1", "--", "echo", "there").stdout == "there\n"
    assert "exec -i --user ronde c2 echo there" in (inventory.programs / "docker.log").read_text()
    assert inventory.run("ssh", "host2", "--", "echo", "here").stdout == "here\n"
    assert "exec -i --user ronde c2 echo here" in (inventory.programs / "docker.log").read_text()
    nobody = inventory.run("ssh", "worker-9")
    assert nobody.returncode == 1
    assert "there are lab-master, lab-worker-1" in nobody.stderr
    said = inventory.run("jupyter")
    assert said.stdout.startswith("https://127.0.0.1:8888/lab\nits token: ronde cluster jupyter --token")
    inventory.fake("cat", 'echo "$1" | grep -qx /run/ronde/jupyter-token.1000 && echo 1234')
    assert inventory.run("jupyter", "--token").stdout == "1234\n"


def test_status_names_what_is_down_and_the_fix(inventory: Command) -> None:
    (inventory.programs / "c2.down").touch()
    done = inventory.run("status", "--no-smoke", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [machine["container"] for machine in found["machines"]] == ["running", "absent"]
    (down,) = (problem for problem in found["problems"] if "c2" in problem["what"])
    assert down["fix"].startswith("ronde cluster up")
    table = inventory.run("status", "--no-smoke").stdout
    assert "lab-worker-1" in table
    assert "the container c2 is absent" in table


def test_a_folder_that_has_no_cluster_says_how_to_make_one(tmp_path: Path) -> None:
    done = Command(tmp_path / "none").run("up")
    assert done.returncode == 1
    assert f"hint: make one: ronde cluster init {tmp_path / 'none'}" in done.stderr


class RealTerraform(Command):
    """A folder whose resources are Terraform's own, so that no cloud is needed."""

    def __init__(self, folder: Path, configure: str) -> None:
        for name in ("site.yml", "remove.yml", "roles/members/templates/hostfile.j2"):
            (folder / "ansible" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "ansible" / name).touch()
        (folder / "main.tf").write_text(MAIN)
        (folder / "resources.auto.tfvars").write_text("horovod_worker_node = { count = 2 }\n")
        (folder / "variables.tf").write_text('variable "horovod_worker_node" {}\n')
        (folder / "inventory.yaml").write_text((Path(__file__).parent / "recorded/up/inventory.yaml").read_text())
        super().__init__(folder)
        self.fake("ansible-playbook", "exit 0")
        self.env = {**environment(), "PATH": self.env["PATH"]}
        self.terraform = program()
        self.configure(configure)

    def configure(self, script: str) -> None:
        """Let the machines be prepared like this."""
        path = self.folder / "configure"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)


def test_a_real_terraform_is_interrupted_resumed_and_deletes_everything(tmp_path: Path) -> None:
    child = tmp_path / "child"
    command = RealTerraform(tmp_path / "cluster", f"sleep 600 & echo $! >{child}; wait")
    with command.running("up") as process:
        await_that("the machines' preparation", lambda: child.exists() and child.read_text().endswith("\n"))
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert gone(int(child.read_text()))
    command.configure("echo 'TASK [all : Well] ***'")
    done = command.run("up")
    assert done.returncode == 0, done.stderr
    assert "created   terraform_data.configure[0]" in done.stderr or "replaced" in done.stderr
    assert "terraform_data.network" not in done.stderr, "what was made stays"
    command.configure("touch prepared-again")
    assert "all is as it should be" in command.run("plan").stdout
    done = command.run("up")
    assert done.returncode == 0, done.stderr
    assert (command.folder / "prepared-again").exists(), "machines may have changed, though no file has"
    done = command.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    left = subprocess.run([program(), "state", "list"], cwd=command.folder, env=command.env, capture_output=True)
    assert left.stdout == b""


def test_a_real_terraform_deletes_what_it_made_though_what_it_asks_for_is_gone(tmp_path: Path) -> None:
    command = RealTerraform(tmp_path / "cluster", "true")
    asked = tmp_path / "asked.tfstate"
    asked.write_text('{"version": 4, "serial": 1, "lineage": "", "outputs": {}, "resources": []}')
    (command.folder / "asks.tf").write_text(
        f'data "terraform_remote_state" "asked" {{\n  backend = "local"\n  config  = {{ path = "{asked}" }}\n}}\n'
    )
    done = command.run("up")
    assert done.returncode == 0, done.stderr
    asked.unlink()
    done = command.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert "warning: the plan failed: data.terraform_remote_state.asked: " in done.stderr
    assert "5 things deleted" in done.stdout


def test_the_docs_tell_how_many_changes_a_cluster_of_two_workers_is(command: Command) -> None:
    (said,) = re.findall(r"terraform plan  (\d+ changes)", (ROOT / "docs" / "cluster-command.md").read_text())
    key = command.folder.parent / "key.pub"
    key.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA anna\n")
    with FakeCloud() as cloud:
        login = ["--auth-url", cloud.address, "--project", "research", "--user", USER, "--key", "key.pub"]
        shutil.rmtree(command.folder)
        words = ["init", str(command.folder), "--wheel", WHEEL, *MACHINES, *login]
        made = command.run(*words, env={"OS_PASSWORD": PASSWORD})
        assert made.returncode == 0, made.stderr
        command.terraform = program()
        done = command.run("plan", env=environment())
    assert done.returncode == 0, done.stderr
    assert f"{said}; nothing was done yet" in done.stdout


def test_the_real_provider_is_refused_with_the_fix(command: Command) -> None:
    with FakeCloud() as cloud:
        login = ["--auth-url", cloud.address, "--project", "research", "--user", "nobody", "--key", "anna"]
        shutil.rmtree(command.folder)
        words = ["init", str(command.folder), "--wheel", WHEEL, *MACHINES, *login]
        made = command.run(*words, env={"OS_PASSWORD": "x-y-z"})
        assert made.returncode == 0, made.stderr
        command.terraform = program()
        done = command.run("plan", env=environment())
    assert done.returncode == 1
    assert "the cloud does not accept the login" in done.stderr, done.stderr
    assert "x-y-z" not in done.stderr + done.stdout
