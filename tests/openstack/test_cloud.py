"""The Terraform module on a real OpenStack: made, grown, shrunk, refused, interrupted, and gone without a trace.

The cloud is real as far as its services go (testbed/cloud.py): servers are namespaces with an ssh server, so Ansible
is left out here (`configure = false`), and there is no block storage. `make test-openstack` runs this.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Command
from terraform import ROOT, Cluster, program
from testbed import PASSWORD, PROJECT, USER, Cloud
from testbed.cloud import ADMIN, KEYSTONE
from testbed.machine import wait_for

LOGS = ROOT / "target" / "test-logs" / "openstack"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(LOGS) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start an ssh-agent with a key of its own, as `ssh -A` would bring one; give its environment."""
    folder = tmp_path_factory.mktemp("agent")
    key = folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", key], check=True)
    # In the foreground, so that it is a child that can be ended.
    with subprocess.Popen(["ssh-agent", "-D", "-a", folder / "socket"], stdout=subprocess.DEVNULL) as agent:
        try:
            while not (folder / "socket").exists():
                assert agent.poll() is None
                time.sleep(0.01)  # sleep: between two looks
            env = {"SSH_AUTH_SOCK": str(folder / "socket"), "KEY": str(key.with_suffix(".pub"))}
            subprocess.run(["ssh-add", "-q", key], env={**os.environ, **env}, check=True)
            yield env
        finally:
            agent.terminate()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("template"), {})


@pytest.fixture
def cluster(template: Cluster, cloud: Cloud, agent: dict[str, str], tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster that can be made, in a project that is empty, and must be so again in the end."""
    assert cloud.everything() == {}
    provider = {"auth_url": KEYSTONE, "project_name": PROJECT, "region": "RegionOne", "user_domain_name": "Default"}
    variables = {
        "auth_data": {"user_name": USER, "password": PASSWORD},
        "openstack_provider": provider,
        "horovod_master_node": {"flavor_name": "small", "image_name": "debian-12", "public_key": agent["KEY"]},
        "horovod_worker_node": {"count": 2},
        "admin_cidr": "203.0.113.7/32",
        "configure": False,
        "ready_timeout": 120,
    }
    cluster = Cluster(tmp_path / "cluster", variables, template.folder, cloud.machine.network(), agent)
    yield cluster
    cluster.run("destroy", "-auto-approve", check=True)
    left = cloud.everything()
    # So that a test that fails is the only one to fail.
    if left:
        leftovers(cluster, "--delete")
    assert left == {}


def outputs(cluster: Cluster) -> dict[str, Any]:
    said = json.loads(cluster.run("output", "-json", check=True).output)
    return {name: output["value"] for name, output in said.items()}


def instances(cloud: Cloud) -> dict[str, str]:
    """Return the ids of all servers, by name."""
    return {server["name"]: server["id"] for server in cloud.api("GET", "compute", "/servers")["servers"]}


def over_ssh(cluster: Cluster, name: str, *command: str) -> str:
    words = [*cluster.before, "ssh", "-F", "ssh_config", "-o", "BatchMode=yes", name, *command]
    done = subprocess.run(words, cwd=cluster.folder, env=cluster.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def changed(done_text: str) -> set[str]:
    """Return the addresses that a run has made, changed or removed."""
    return set(re.findall(r"^(\S+): (?:Creating|Modifying|Destroying)\.\.\.", done_text, re.MULTILINE))


def test_ronde_cluster_makes_grows_and_deletes_it(cluster: Cluster, cloud: Cloud) -> None:
    command = Command(cluster.folder)
    command.before, command.terraform, command.patience = [*cluster.before], program(), 600
    command.env |= cluster.env
    made = command.run("up")
    assert made.returncode == 0, made.stdout + made.stderr
    assert re.search(r"✓ created +openstack_compute_instance_v2\.master", made.stderr)
    assert "the cluster ronde is up: a master and 2 workers" in made.stdout
    assert_no_secret(made.stdout + made.stderr)
    assert_no_secret(made.stdout + "".join(file.read_text() for file in (cluster.folder / ".ronde").iterdir()))
    there = instances(cloud)
    assert command.run("ssh", "worker-2", "--", "hostname").stdout == "ronde-worker-2\n"
    # All machines are there; without the roles they have no containers.
    found = command.run("status")
    assert found.returncode == 1, found.stdout + found.stderr
    for name, container in [
        ("master", "horovod_master"),
        ("worker-1", "horovod_worker"),
        ("worker-2", "horovod_worker"),
    ]:
        assert re.search(rf"^ronde-{name} +\S+ +✓ +absent", found.stdout, re.MULTILINE), found.stdout
        assert f"ronde-{name}: the container {container} is absent" in found.stdout

    grown = command.run("scale", "3")
    assert grown.returncode == 0, grown.stdout + grown.stderr
    assert "workers: 2 → 3" in grown.stderr
    assert instances(cloud) == {**there, "ronde-worker-3": instances(cloud)["ronde-worker-3"]}

    # Nobody is there to agree to it.
    refused = command.run("down")
    assert refused.returncode != 0
    assert len(instances(cloud)) == 4
    gone = command.run("down", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert cloud.everything() == {}


def test_a_cluster_comes_grows_shrinks_and_goes(cluster: Cluster, cloud: Cloud) -> None:
    made = cluster.run("apply", "-auto-approve", check=True)
    assert_no_secret(made.text)

    # It is there, and reached the way the outputs say.
    said = outputs(cluster)
    assert said["horovodrun"].startswith("horovodrun -np 3 -H host1:1,host2:1,host3:1 -p 12345 python /examples/")
    assert said["jupyter"] == f"https://{said['master_address']}:8888/lab"
    assert said["master_address"].startswith("198.51.100.")
    assert set(said["workers"]) == {"ronde-worker-1", "ronde-worker-2"}
    assert said["ssh"] == f"ssh -F '{cluster.folder}/ssh_config' ronde-master"
    for name in ("ronde-master", "ronde-worker-1", "ronde-worker-2"):
        assert over_ssh(cluster, name, "hostname") == name
    first = instances(cloud)
    assert set(first) == {"ronde-master", "ronde-worker-1", "ronde-worker-2"}
    inventory = (cluster.folder / "inventory.yaml").read_text()
    for address in (said["master_address"], said["master_private_address"], *said["workers"].values()):
        assert address in inventory

    # Nothing is left to do.
    again = cluster.run("plan", "-detailed-exitcode")
    assert again.status == 0, again.text

    # No secret is in anything that was written, and none of the keys' private halves.
    for file in cluster.folder.glob("*.tfstate*"):
        assert_no_secret(file.read_text())
    assert_no_secret(inventory)

    # One more: only that one.
    cluster.write(horovod_worker_node={"count": 3})
    grown = cluster.run("apply", "-auto-approve", check=True)
    new = {"openstack_networking_port_v2.worker[2]", "openstack_compute_instance_v2.worker[2]"}
    assert changed(grown.text) == new | {"terraform_data.inventory", 'terraform_data.ready["ronde-worker-3"]'}
    assert {name: known for name, known in instances(cloud).items() if name in first} == first
    assert over_ssh(cluster, "ronde-worker-3", "hostname") == "ronde-worker-3"

    # Two less: only those.
    cluster.write(horovod_worker_node={"count": 1})
    shrunk = cluster.run("apply", "-auto-approve", check=True)
    machines = {address for address in changed(shrunk.text) if not address.startswith("terraform_data")}
    kinds = ("openstack_networking_port_v2", "openstack_compute_instance_v2")
    assert machines == {f"{kind}.worker[{index}]" for kind in kinds for index in (1, 2)}
    left = {name: first[name] for name in ("ronde-master", "ronde-worker-1")}
    assert instances(cloud) == left
    assert over_ssh(cluster, "ronde-worker-1", "hostname") == "ronde-worker-1"

    cluster.run("destroy", "-auto-approve", check=True)
    assert cloud.everything() == {}
    assert not [name for name in ("inventory.yaml", "ssh_config", "known_hosts") if (cluster.folder / name).exists()]
    for file in cluster.folder.glob("*.tfstate*"):
        assert_no_secret(file.read_text())


def process_list(group: int) -> str:
    """Return command lines and environments of all processes of a group."""
    found = ""
    for process in Path("/proc").iterdir():
        # Those that end meanwhile are none of it any more.
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(process.name)) == group:
                found += (process / "cmdline").read_text() + (process / "environ").read_text()
    assert "terraform-provider-openstack" in found
    return found


def assert_no_secret(text: str) -> None:
    assert PASSWORD not in text
    assert "PRIVATE KEY" not in text
    # What Keystone gives out instead of a password.
    assert "gAAAA" not in text


def test_only_administrators_and_the_cluster_itself_may_come_in(cluster: Cluster, cloud: Cloud) -> None:
    cluster.write(horovod_worker_node={"count": 0})
    cluster.run("apply", "-auto-approve", check=True)
    groups = cloud.api("GET", "network", "/v2.0/security-groups")["security_groups"]
    ours = {group["id"]: group for group in groups if group["name"].startswith("ronde-")}
    rules = [
        rule for group in ours.values() for rule in group["security_group_rules"] if rule["direction"] == "ingress"
    ]
    assert rules
    for rule in rules:
        if rule["remote_group_id"] is None:
            assert rule["remote_ip_prefix"] == "203.0.113.7/32"
            assert rule["port_range_min"] == rule["port_range_max"]
            assert rule["port_range_min"] in (22, 8888)
        else:
            assert ours[rule["remote_group_id"]]["name"] == "ronde-cluster"
    # No port has another group, such as the project's own.
    ports = cloud.api("GET", "network", "/v2.0/ports?tags=ronde-cluster-ronde")["ports"]
    assert ports
    for port in ports:
        assert set(port["security_groups"]) <= set(ours)
        assert port["port_security_enabled"]


def test_what_the_cloud_refuses_is_said_before_anything_is_made(cluster: Cluster, cloud: Cloud) -> None:
    project = cloud.project()
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"horovod_master_node": {"image_name": "debian-1"}}, "The cloud has no image debian-1 (horovod_master_node)"),
        (
            {"horovod_master_node": {"flavor_name": "huge"}},
            "horovod_master_node.flavor_name: see `openstack flavor list`",
        ),
        (
            {"horovod_master_node": {"public_key": None, "key_pair": "bert"}},
            "horovod_master_node.key_pair: see `openstack keypair list`",
        ),
        (
            {"horovod_master_node": {"public_ip": "198.51.100.99"}},
            "horovod_master_node.public_ip: see `openstack floating ip list`",
        ),
        ({"network": {"name": "lab"}}, "network.name or network.id: see `openstack network list`"),
        (
            {"horovod_worker_node": {"count": 12}},
            "instances: 13 more machines are needed, and 0 of 10 are in use",
        ),
        (
            {"horovod_worker_node": {"flavor_name": "large", "count": 3}},
            "cores: 25 more cores are needed, and 0 of 20 are in use",
        ),
        ({"auth_data": {"password": "wrong"}}, "who you are: auth_data, openstack_provider"),
    ]
    good = json.loads(json.dumps(cluster.variables))
    for change, message in refusals:
        cluster.write(**change)
        done = cluster.run("apply", "-auto-approve")
        assert done.status == 1
        assert message in done.words
        assert cloud.everything() == {}
        cluster.variables = json.loads(json.dumps(good))
        cluster.write()

    cloud.api("PUT", "network", f"/v2.0/quotas/{project}", {"quota": {"floatingip": 0}}, ADMIN)
    try:
        done = cluster.run("apply", "-auto-approve")
    finally:
        cloud.api("DELETE", "network", f"/v2.0/quotas/{project}", user=ADMIN)
    assert done.status == 1
    assert "floatingip: 1 needed, 0 allowed" in done.words
    assert cloud.everything() == {}


@pytest.fixture
def application_credential(cloud: Cloud) -> Iterator[dict[str, str]]:
    """Make an application credential of the ordinary user's; give its id and secret."""
    user = cloud.api("GET", "identity", f"/users?name={USER}", user=ADMIN)["users"][0]["id"]
    place = f"/users/{user}/application_credentials"
    made = cloud.api("POST", "identity", place, {"application_credential": {"name": "ronde"}})["application_credential"]
    yield made
    cloud.api("DELETE", "identity", f"{place}/{made['id']}")


def test_an_application_credential_logs_in(
    application_credential: dict[str, str], cluster: Cluster, cloud: Cloud
) -> None:
    known, secret = application_credential["id"], application_credential["secret"]
    login = {"application_credential_id": known, "application_credential_secret": secret}
    # All else stays as it was for the password.
    cluster.write(auth_data={"user_name": None, "password": None} | login)
    assert_logged_in(cluster, cloud)


def test_an_entry_of_clouds_yaml_logs_in(cluster: Cluster, cloud: Cloud) -> None:
    domains = {"user_domain_name": "Default", "project_domain_name": "Default"}
    login = {"auth_url": KEYSTONE, "username": USER, "password": PASSWORD, "project_name": PROJECT} | domains
    clouds = {"clouds": {"lab": {"auth": login, "region_name": "RegionOne"}}}
    # JSON is YAML.
    (cluster.folder / "clouds.yaml").write_text(json.dumps(clouds))
    cluster.variables |= {"auth_data": None, "openstack_provider": {"cloud": "lab"}}
    cluster.write()
    assert_logged_in(cluster, cloud)


def assert_logged_in(cluster: Cluster, cloud: Cloud) -> None:
    """Plan, and look for leftovers; neither makes anything."""
    cluster.run("plan", check=True)
    assert leftovers(cluster) == (0, "")
    assert cloud.everything() == {}


def test_machines_stay_together_in_a_server_group_and_an_address_that_is_given_is_kept(
    cluster: Cluster, cloud: Cloud
) -> None:
    networks = cloud.api("GET", "network", "/v2.0/networks?name=public")["networks"]
    request = {"floatingip": {"floating_network_id": networks[0]["id"]}}
    given = cloud.api("POST", "network", "/v2.0/floatingips", request)["floatingip"]
    address = given["floating_ip_address"]
    try:
        cluster.write(
            horovod_master_node={"public_ip": address}, horovod_worker_node={"count": 1}, server_group="affinity"
        )
        cluster.run("apply", "-auto-approve", check=True)
        assert outputs(cluster)["master_address"] == address
        groups = cloud.api("GET", "compute", "/os-server-groups")["server_groups"]
        assert [(group["policy"], len(group["members"])) for group in groups] == [("affinity", 2)]
        assert cluster.run("plan", "-detailed-exitcode").status == 0
        cluster.run("destroy", "-auto-approve", check=True)
        left = cloud.everything()
        assert left == {"floatingips": [given["id"]]}
    finally:
        cloud.api("DELETE", "network", f"/v2.0/floatingips/{given['id']}")


# In the place of ansible-playbook: notes how it was called, and has the real Ansible reach all machines.
PLAYBOOK = """#!/bin/sh
echo "$ANSIBLE_CONFIG $*" >>"{folder}/runs"
[ ! -e "{folder}/fail" ] || exit 4
exec "{ansible}" -i "$2" all -m ansible.builtin.ping
"""


def test_ansible_runs_once_machines_are_ready_and_again_when_something_has_changed(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.write(configure=True, ansible_playbook="no-such-playbook", horovod_worker_node={"count": 1})
    missing = cluster.run("apply", "-auto-approve")
    assert missing.status == 1
    assert (
        f"no-such-playbook is not installed: pip install -r {cluster.folder}/ansible/requirements.txt" in missing.words
    )

    environment = subprocess.run(
        [ROOT / "tools" / "python-env", "ansible"], stdout=subprocess.PIPE, text=True, check=True
    )
    playbook = tmp_path / "playbook"
    playbook.write_text(PLAYBOOK.format(folder=tmp_path, ansible=f"{environment.stdout.strip()}/bin/ansible"))
    playbook.chmod(0o755)
    runs = tmp_path / "runs"
    line = f"{cluster.folder}/ansible/ansible.cfg -i inventory.yaml ansible/site.yml\n"
    cluster.write(ansible_playbook=str(playbook))

    # One that fails is run again, and nothing else is.
    (tmp_path / "fail").touch()
    failed = cluster.run("apply", "-auto-approve")
    assert failed.status == 1
    assert changed(failed.text) == {"terraform_data.configure[0]"}
    (tmp_path / "fail").unlink()
    configured = cluster.run("apply", "-auto-approve", check=True)
    assert len(re.findall(r"ronde-\S+ \| SUCCESS", configured.text)) == 2
    assert runs.read_text() == 2 * line

    # Nothing has changed; then a role has.
    assert changed(cluster.run("apply", "-auto-approve", check=True).text) == set()
    with (cluster.folder / "ansible" / "site.yml").open("a") as site:
        site.write("# changed\n")
    again = cluster.run("apply", "-auto-approve", check=True)
    assert changed(again.text) == {"terraform_data.configure[0]"}
    assert runs.read_text() == 3 * line


def start(cluster: Cluster) -> subprocess.Popen[str]:
    """Start an apply in a process group of its own."""
    return subprocess.Popen(
        cluster.words("apply", "-auto-approve"),
        cwd=cluster.folder,
        env=cluster.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_until(apply: subprocess.Popen[str], begun: int, more: float) -> str:
    """Read what it says until it has begun so many resources, and a moment more; return that."""
    said = ""
    assert apply.stdout is not None
    while len(changed(said)) < begun:
        line = apply.stdout.readline()
        assert line, f"it ended after {len(changed(said))} of {begun} resources: {said}"
        said += line
    time.sleep(more)  # sleep: the stop is meant to come at any moment
    return said


# A stop makes the provider give up waiting for what it has just asked for, and Terraform then never hears of it; so
# both ways can lose something.
@pytest.mark.parametrize(
    ("number", "seed", "then"),
    [
        (signal.SIGINT, 1, "apply"),
        (signal.SIGINT, 2, "destroy"),
        (signal.SIGKILL, 3, "apply"),
        (signal.SIGKILL, 4, "apply"),
        (signal.SIGKILL, 5, "destroy"),
    ],
)
def test_an_apply_that_was_stopped_anywhere_can_be_mended_and_then_continued_or_undone(
    cluster: Cluster, cloud: Cloud, number: signal.Signals, seed: int, then: str
) -> None:
    chance = random.Random(seed)
    apply = start(cluster)
    wait_until(apply, chance.randint(1, 16), chance.random())
    assert_no_secret(process_list(apply.pid))
    # As Ctrl-C would: to all that it has started, too.
    os.killpg(apply.pid, number)
    said, _ = apply.communicate(timeout=300)
    assert apply.returncode != 0, said
    assert_no_secret(said)
    await_quiet(cloud)
    status, listed = leftovers(cluster)
    assert status == (1 if listed else 0)
    assert leftovers(cluster, "--delete")[0] == 0
    assert leftovers(cluster) == (0, "")
    assert_goes_on(cluster, cloud, then)


def assert_goes_on(cluster: Cluster, cloud: Cloud, then: str) -> None:
    """Apply or destroy, and look at what is there then."""
    cluster.run(then, "-auto-approve", check=True)
    if then == "destroy":
        assert cloud.everything() == {}
        return
    assert set(instances(cloud)) == {"ronde-master", "ronde-worker-1", "ronde-worker-2"}
    assert over_ssh(cluster, "ronde-worker-2", "hostname") == "ronde-worker-2"


def test_a_server_that_the_state_does_not_have_is_found_and_deleted(cluster: Cluster, cloud: Cloud) -> None:
    # One of two: of what is there only in part, Terraform cannot work out everything.
    cluster.run("apply", "-auto-approve", check=True)
    lost = instances(cloud)["ronde-worker-2"]
    cluster.run("state", "rm", "openstack_compute_instance_v2.worker[1]", check=True)
    assert leftovers(cluster) == (1, f"server ronde-worker-2 ({lost})\n")
    assert leftovers(cluster, "--delete") == (0, f"server ronde-worker-2 ({lost}): deleting\n")
    assert set(instances(cloud)) == {"ronde-master", "ronde-worker-1"}
    cluster.run("apply", "-auto-approve", check=True)
    assert over_ssh(cluster, "ronde-worker-2", "hostname") == "ronde-worker-2"


def leftovers(cluster: Cluster, *words: str) -> tuple[int, str]:
    """Run leftovers.py; return its status and what it listed."""
    command = [*cluster.before, sys.executable, "leftovers.py", "--terraform", program(), *words]
    done = subprocess.run(command, cwd=cluster.folder, env=cluster.env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "error" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def await_quiet(cloud: Cloud) -> None:
    """Wait until the cloud has done what the killed one had still asked for."""

    def quiet() -> bool:
        servers = cloud.api("GET", "compute", "/servers/detail")["servers"]
        return not [server for server in servers if server["status"] == "BUILD"]

    wait_for("servers that are being built", quiet, 60, cloud.machine.check)
