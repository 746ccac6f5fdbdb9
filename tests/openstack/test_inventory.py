"""`ronde cluster` on machines that are there: an inventory's, or containers; and how a folder changes to another kind.

Ansible, Docker and ssh are fakes, and every machine is this one. test_local.py has real containers, and test_guests.py
real machines.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from command import RONDE, WHEEL, Command, await_that, gone
from terminal import CTRL_C, Terminal

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
    [ "$1" = sh ] && [ -e "$(dirname "$0")/full" ] && echo "sh: cannot create $5: No space left on device" >&2 && exit 2
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


HEARS_SIGNALS = "while :; do sleep 0.05; done"  # sleep: a shell hears them in between


def test_run_passes_signals_on(inventory: Command) -> None:
    inventory.fake("ronde", f"trap 'echo interrupted; exit 42' INT; echo ready; {HEARS_SIGNALS}")
    with inventory.running("run", "--", "train") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert process.returncode == 42


def test_a_job_ends_if_the_command_is_killed(inventory: Command, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    inventory.fake("ronde", f"trap 'touch {ended}; exit 0' TERM; echo ready; {HEARS_SIGNALS}")
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


def test_jupyterlab_is_opened_where_there_is_a_screen_and_named_everywhere(inventory: Command) -> None:
    opened = inventory.programs / "opened"
    # How it ends is not our affair: the address is there to be typed.
    browser = inventory.fake("xdg-open", f'echo "$*" >>{opened}; exit 3')
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        inventory.env.pop(name, None)
    address = "https://127.0.0.1:8888/lab"

    def opens(*words: str, **env: str) -> str:
        opened.write_text("")
        done = inventory.run("jupyter", *words, env=env)
        assert done.returncode == 0, done.stderr
        assert words or done.stdout.startswith(f"{address}\nits token: ronde cluster jupyter --token")
        return opened.read_text()

    assert opens(DISPLAY=":0") == f"{address}\n", "and no token, which others would see in the list of processes"
    assert opens(WAYLAND_DISPLAY="wayland-0") == f"{address}\n"
    assert opens() == ""
    inventory.fake("cat", "echo 1234")
    assert opens("--token", DISPLAY=":0") == ""
    browser.unlink()
    assert opens(DISPLAY=":0", PATH=str(inventory.programs)) == ""


# Is started, and then there until it is told to end, as a tunnel is.
TUNNEL = 'printf "%s\\n" $$ "$@" >"$(dirname "$0")/ssh.log"; echo connected; exec sleep 600'  # sleep: as said


def test_a_tunnel_leads_to_jupyterlab_until_ctrl_c_and_leaves_no_process(over_ssh: Command, inventory: Command) -> None:
    over_ssh.fake("ssh", TUNNEL)
    for words, port in ((["--tunnel"], 8888), (["--tunnel", "9000"], 9000)):
        with Terminal(over_ssh, "jupyter", *words) as terminal:
            terminal.await_text(f"https://localhost:{port}/lab until Ctrl-C\r\n")
            terminal.await_text("its token: ronde cluster jupyter --token")
            terminal.await_text("connected")
            terminal.type(CTRL_C)
            assert terminal.end() == -signal.SIGINT
        process, *told = (over_ssh.programs / "ssh.log").read_text().splitlines()
        assert gone(int(process))
        assert told[:5] == ["-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{port}:127.0.0.1:8888"]
        assert told[-1] == "lab-master"
    # JupyterLab of a container of this machine is here already.
    (over_ssh.programs / "ssh.log").unlink()
    (inventory.folder.parent / "hosts.yaml").write_text(INVENTORY)
    assert inventory.run("jupyter", "--tunnel").stdout.startswith("https://127.0.0.1:8888/lab\n")
    assert not (over_ssh.programs / "ssh.log").exists()


def test_status_tells_a_full_share_from_a_dead_cluster(inventory: Command) -> None:
    (inventory.programs / "full").touch()
    found = json.loads(inventory.run("status", "--no-smoke", "--json").stdout)
    whats = [problem["what"] for problem in found["problems"]]
    assert "nothing can be written into /mnt/share on the master: sh: cannot create" in whats[0]
    assert "df -h on the machine" in found["problems"][0]["fix"]
    assert not any("does not see" in what for what in whats)


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
