"""What the Terraform module refuses, and its words: values, credentials, and what the cloud does not have or allow.

The cloud is a fake that only answers questions (fake_cloud.py); nothing gets as far as being made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_cloud import PASSWORD, FakeCloud, Flavor, FloatingAddress, Port
from terraform import DEPLOY, Cluster, identity_of


def test_the_placeholders_of_both_files_are_refused_without_a_word_to_any_cloud(
    cluster: Cluster, cloud: FakeCloud
) -> None:
    for name in ("auth_data.auto.tfvars", "resources.auto.tfvars"):
        shutil.copy(DEPLOY / name, cluster.folder / name)
    done = cluster.run("plan")
    assert done.status == 1
    for name in ("openstack_provider", "horovod_master_node", "horovod_worker_node"):
        assert f"resources.auto.tfvars still has placeholders in {name}" in done.words
    assert "admin_cidr in resources.auto.tfvars still has its placeholder" in done.words
    assert cloud.requests == []


def test_the_placeholders_of_the_password_are_refused(cluster: Cluster, cloud: FakeCloud) -> None:
    shutil.copy(DEPLOY / "auth_data.auto.tfvars", cluster.folder)
    done = cluster.run("plan")
    assert done.status == 1
    assert "auth_data.auto.tfvars still has placeholders: put your own user_name and password there" in done.words
    assert cloud.requests == []


# What is wrong by itself: a value, and what is said about it.
INVALID: list[tuple[str, Any, str]] = [
    ("admin_cidr", "YOUR.PUBLIC.ADDRESS/32", "still has its placeholder"),
    ("admin_cidr", "0.0.0.0/0", "admin_cidr would open ssh and JupyterLab to the whole world"),
    ("admin_cidr", "::/0", "admin_cidr would open ssh and JupyterLab to the whole world"),
    ("admin_cidr", "0.0.0.0/1,128.0.0.0/1", "admin_cidr would open ssh and JupyterLab to the whole world"),
    ("admin_cidr", "203.0.113.7/32, 0.0.0.0/0", "admin_cidr would open ssh and JupyterLab to the whole world"),
    ("admin_cidr", "203.0.113.7", "admin_cidr must be a range of addresses such as 203.0.113.7/32"),
    ("admin_cidr", "", "admin_cidr must be a range of addresses"),
    ("admin_cidr", "my house", "admin_cidr must be a range of addresses"),
    (
        "openstack_provider",
        {"auth_url": "https://YOUR_KEYSTONE:5000/v3"},
        "still has placeholders in openstack_provider",
    ),
    ("openstack_provider", {"auth_url": "keystone.example.org"}, "auth_url must be the address of Keystone"),
    ("openstack_provider", {"tenant_name": "research"}, "both project_name and tenant_name, which mean the same"),
    ("horovod_master_node", {"flavor_name": "YOUR_FLAVOR"}, "still has placeholders in horovod_master_node"),
    ("horovod_master_node", {"image_name": None}, "needs either image_name or image_id (openstack image list)"),
    ("horovod_master_node", {"image_id": "1234"}, "needs either image_name or image_id (openstack image list)"),
    (
        "horovod_master_node",
        {"key_pair": "anna"},
        "both key_pair (the name of one that is in the cloud) and public_key",
    ),
    ("horovod_master_node", {"public_ip": "somewhere"}, "public_ip must be a floating IP of your project"),
    ("horovod_master_node", {"volume_size": 1.5}, "are in GB: whole numbers"),
    ("horovod_master_node", {"boot_volume_size": -1}, "are in GB: whole numbers"),
    ("horovod_master_node", {"gpus": -1}, "horovod_master_node.gpus cannot be less than 0"),
    ("horovod_worker_node", {"count": -1}, "horovod_worker_node.count must be a whole number from 0 to 500"),
    ("horovod_worker_node", {"count": 1.5}, "horovod_worker_node.count must be a whole number from 0 to 500"),
    ("horovod_worker_node", {"flavor_name": "YOUR_FLAVOR"}, "still has placeholders in horovod_worker_node"),
    (
        "horovod_worker_node",
        {"image_name": "a", "image_id": "b"},
        "horovod_worker_node has both image_name and image_id",
    ),
    ("horovod_worker_node", {"boot_volume_size": 0.5}, "horovod_worker_node.boot_volume_size is in GB"),
    ("horovod_worker_node", {"gpus": -1}, "horovod_worker_node.gpus cannot be less than 0"),
    ("network", {"cidr": "10.20.30.0"}, "network.cidr must be a range of private IPv4 addresses"),
    ("network", {"cidr": "fd00::/64"}, "network.cidr must be a range of private IPv4 addresses"),
    ("network", {"cidr": "10.20.30.0/30"}, "must have between 8 and 28 bits after the slash"),
    ("network", {"dns": ["example.org"]}, "network.dns must be a list of addresses of name servers"),
    ("network", {"name": "a", "id": "b"}, "network has both name and id"),
    ("cluster_name", "My Cluster", "cluster_name must be at most 32 small letters, digits and hyphens"),
    ("cluster_name", "a-", "cluster_name must be at most 32 small letters, digits and hyphens"),
    ("server_group", "together", "server_group must be affinity, anti-affinity"),
    ("ssh_user", "root; reboot", "ssh_user must be the name of a user"),
    ("framework", "mxnet", "framework must be tensorflow or torch"),
    ("image", "two words", "image must be the name of a container image"),
    ("ready_timeout", 0, "ready_timeout is in seconds, at least 1"),
    ("ready_timeout", 1.5, "ready_timeout is in seconds, at least 1: a whole number"),
]


def rounds() -> list[list[tuple[str, Any, str]]]:
    """Return the table in parts, each with as many variables as possible: Terraform tells of all that are wrong."""
    parts: list[list[tuple[str, Any, str]]] = []
    for row in INVALID:
        free = next((part for part in parts if row[0] not in [name for name, _, _ in part]), None)
        if free is None:
            parts.append([row])
        else:
            free.append(row)
    return parts


@pytest.mark.parametrize("rows", rounds(), ids=lambda rows: f"{len(rows)} variables")
def test_wrong_values_are_refused_by_name(cluster: Cluster, rows: list[tuple[str, Any, str]]) -> None:
    cluster.write(**{name: value for name, value, _ in rows})
    done = cluster.run("plan")
    assert done.status == 1
    assert [message for _, _, message in rows if message not in done.words] == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("horovod_master_node", {"flavor_name": None}, 'attribute "flavor_name" is required'),
        ("horovod_worker_node", {"count": "many"}, "a number is required"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(cluster: Cluster, name: str, value: Any, message: str) -> None:
    cluster.write(**{name: value})
    done = cluster.run("plan")
    assert done.status == 1
    assert message in done.words


# Credentials that cannot be: none of it may be shown, since Terraform shows what a variable was given as.
CREDENTIALS: list[tuple[dict[str, str | None], str]] = [
    ({"user_name": None}, "only one of user_name and password: give both, or neither"),
    ({"user_name": "YOUR_USER_NAME"}, "still has placeholders"),
    ({"application_credential_id": "0a"}, "only one of application_credential_id and application_credential_secret"),
    (
        {"application_credential_id": "0a", "application_credential_secret": PASSWORD},
        "both a password and an application credential: remove one, best the password",
    ),
]


@pytest.mark.parametrize(("change", "message"), CREDENTIALS, ids=[message[:40] for _, message in CREDENTIALS])
def test_credentials_that_cannot_be_are_refused_and_not_shown(
    cluster: Cluster, cloud: FakeCloud, change: dict[str, str | None], message: str
) -> None:
    cluster.write(auth_data=change)
    done = cluster.run("plan")
    assert done.status == 1
    assert message in done.words
    assert PASSWORD not in done.text
    assert cloud.requests == []


def test_a_wrong_password_is_said_once_and_not_shown(cluster: Cluster) -> None:
    cluster.write(auth_data={"password": "wrong-horse"})
    done = cluster.run("plan")
    assert done.status == 1
    assert done.text.count("Error: ") == 1
    assert "requires authentication" in done.words or "Authentication failed" in done.words
    assert "who you are: auth_data, openstack_provider, clouds.yaml or OS_* variables" in done.words
    assert "wrong-horse" not in done.text


def test_a_cloud_that_is_not_there_is_named(cluster: Cluster) -> None:
    cluster.write(openstack_provider={"auth_url": "http://127.0.0.1:9/v3"})
    done = cluster.run("plan")
    assert done.status == 1
    assert "127.0.0.1:9" in done.words
    assert "connection refused" in done.words


Change = Callable[[FakeCloud], object]


def no_change(_cloud: FakeCloud) -> None:
    """Leave the cloud as it is."""


def limits(**limits: int) -> Change:
    return lambda cloud: cloud.limits.update(limits)


def quota(**quota: int) -> Change:
    return lambda cloud: cloud.quota.update(quota)


def put(kind: str, name: str, value: Any) -> Change:
    return lambda cloud: getattr(cloud, kind).__setitem__(name, value)


# What only the cloud can tell: what it is like, what is asked for, and what is said.
REFUSED: list[tuple[str, Change, dict[str, Any], str]] = [
    (
        "no such image",
        no_change,
        {"horovod_master_node": {"image_name": "debian-13"}},
        "The cloud has no image debian-13 (horovod_master_node): `openstack image list` shows those it has",
    ),
    (
        "no image of that id",
        no_change,
        {"horovod_master_node": {"image_name": None, "image_id": "22222222"}},
        "The cloud has no image 22222222 (horovod_master_node)",
    ),
    (
        "no such image for workers",
        no_change,
        {"horovod_worker_node": {"image_name": "debian-13"}},
        "The cloud has no image debian-13 (horovod_worker_node)",
    ),
    (
        "no such flavour",
        no_change,
        {"horovod_master_node": {"flavor_name": "huge"}},
        "horovod_master_node.flavor_name: see `openstack flavor list`",
    ),
    (
        "no such flavour for workers",
        no_change,
        {"horovod_worker_node": {"flavor_name": "huge"}},
        "horovod_worker_node.flavor_name: see `openstack flavor list`",
    ),
    (
        "a flavour without a disk",
        put("flavors", "diskless", Flavor(disk=0)),
        {"horovod_worker_node": {"flavor_name": "diskless"}},
        "The flavour diskless has no disk: give horovod_worker_node.boot_volume_size",
    ),
    (
        "a flavour without a disk for the master",
        put("flavors", "diskless", Flavor(disk=0)),
        {"horovod_master_node": {"flavor_name": "diskless"}, "horovod_worker_node": {"flavor_name": "small"}},
        "The flavour diskless has no disk: give horovod_master_node.boot_volume_size",
    ),
    (
        "no such key pair",
        no_change,
        {"horovod_master_node": {"public_key": None, "key_pair": "bert"}},
        "horovod_master_node.key_pair: see `openstack keypair list`",
    ),
    (
        "no key at all",
        no_change,
        {"horovod_master_node": {"public_key": None}},
        "There is no public key in ~/.ssh to let you in with. Make one (ssh-keygen -t ed25519)",
    ),
    (
        "a key that is none",
        no_change,
        {"horovod_master_node": {"public_key": "no-such-file.pub"}},
        "must be an OpenSSH public key (ssh-ed25519 AAAA…) or the name of a file that holds one",
    ),
    (
        "no such archive",
        no_change,
        {"image": "~/image.tar"},
        "There is no archive ~/image.tar here (image): write one with `docker save --output FILE IMAGE`",
    ),
    (
        "no such address",
        no_change,
        {"horovod_master_node": {"public_ip": "198.51.100.9"}},
        "horovod_master_node.public_ip: see `openstack floating ip list`",
    ),
    (
        "an address that another machine has",
        put("addresses", "198.51.100.9", FloatingAddress(port="another")),
        {"horovod_master_node": {"public_ip": "198.51.100.9"}},
        "The address 198.51.100.9 (horovod_master_node.public_ip) is in use by another machine",
    ),
    (
        "no such network",
        no_change,
        {"network": {"name": "lab"}},
        "network.name or network.id: see `openstack network list`",
    ),
    (
        "two external networks",
        put("networks", "other", True),
        {},
        "name it in network.external_network: see `openstack network list --external`",
    ),
    (
        "too many machines",
        limits(totalInstancesUsed=8),
        {},
        "The project's quota is too small. instances: 3 more machines are needed, and 8 of 10 are in use",
    ),
    (
        "too many cores and too much memory",
        limits(maxTotalCores=4, maxTotalRAMSize=8192),
        {},
        "cores: 6 more cores are needed, and 0 of 4 are in use; ram: 12288 more MB of memory are needed, and 0 of 8192",
    ),
    (
        "no network allowed",
        quota(network=0, router=0),
        {},
        "network: 1 needed, 0 allowed; router: 1 needed, 0 allowed. Ask for more, or name a network that is there",
    ),
    (
        "volumes that are too large",
        put("volume_quota", "gigabytes", 100),
        {"horovod_master_node": {"volume_size": 60, "boot_volume_size": 20}},
        "gigabytes: 120 needed, 100 allowed. Ask for more, or take a smaller volume_size or boot_volume_size",
    ),
    ("no floating IP allowed", quota(floatingip=0), {}, "floatingip: 1 needed, 0 allowed"),
    ("too few rules allowed", quota(security_group_rule=7), {}, "security_group_rule: 8 needed, 7 allowed"),
    (
        "a network without room",
        limits(maxTotalInstances=-1, maxTotalCores=-1, maxTotalRAMSize=-1),
        {"network": {"cidr": "10.0.0.0/28"}, "horovod_worker_node": {"count": 11}},
        "network.cidr 10.0.0.0/28 has no room for 12 machines",
    ),
]


@pytest.mark.parametrize(("_name", "change", "variables", "message"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_what_the_cloud_does_not_have_is_said_before_anything_is_made(
    cluster: Cluster,
    cloud: FakeCloud,
    tmp_path: Path,
    _name: str,
    change: Change,
    variables: dict[str, Any],
    message: str,
) -> None:
    change(cloud)
    cluster.write(**variables)
    done = cluster.run("plan", env={"HOME": str(tmp_path)})
    assert done.status == 1
    assert message in done.words
    assert [request for request in cloud.requests if not request.startswith("GET ")] == ["POST v3/auth/tokens"]


@pytest.mark.parametrize("where", ["text", "file"])
def test_a_private_key_is_refused_and_not_shown(cluster: Cluster, where: str) -> None:
    text = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0LXNlY3JldA==\n-----END OPENSSH PRIVATE KEY-----\n"
    (cluster.folder / "id_ed25519").write_text(text)
    cluster.write(horovod_master_node={"public_key": text if where == "text" else "id_ed25519"})
    done = cluster.run("plan")
    assert done.status == 1
    assert "horovod_master_node.public_key is a private key, which must never leave your machine" in done.words
    assert "c2VjcmV0" not in done.text


def test_the_machines_that_are_there_do_not_count_against_the_quota_again(cluster: Cluster, cloud: FakeCloud) -> None:
    limits(maxTotalInstances=4, totalInstancesUsed=3, maxTotalCores=8, totalCoresUsed=6)(cloud)
    # One of them is stopped; the third worker has got no further than its port.
    stopped, unused = Port("ronde-worker", status="DOWN"), Port("ronde-worker", device="", status="DOWN")
    cloud.ports = {"m": Port("ronde-master"), "w1": Port("ronde-worker"), "w2": stopped, "w3": unused}
    cluster.write(horovod_worker_node={"count": 3})
    cluster.run("plan", check=True)
    cluster.write(horovod_worker_node={"count": 4})
    assert "instances: 2 more machines are needed, and 3 of 4 are in use" in cluster.run("plan").words


def test_the_address_of_a_master_that_is_stopped_is_still_its_own(cluster: Cluster, cloud: FakeCloud) -> None:
    mark = f"ronde-cluster-ronde-{identity_of(cluster)}"
    cloud.ports = {"m": Port("ronde-master", mark, status="DOWN")}
    cloud.addresses["198.51.100.9"] = FloatingAddress(port="m")
    cluster.write(horovod_master_node={"public_ip": "198.51.100.9"})
    cluster.run("plan", check=True)


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_a_name_that_another_cluster_has_is_refused_before_anything_is_made(
    cluster: Cluster, cloud: FakeCloud, verb: str
) -> None:
    cloud.ports = {"m": Port("ronde-master", "ronde-cluster-ronde-another")}
    cloud.addresses["198.51.100.9"] = FloatingAddress(port="m")
    cluster.write(horovod_master_node={"public_ip": "198.51.100.9"})
    # A first apply learns its identity before it looks at the name; every other plan knows it.
    if verb == "plan":
        identity_of(cluster)
    done = cluster.run(verb, *(["-auto-approve"] if verb == "apply" else []))
    assert done.status == 1
    assert "The project has another cluster that is called ronde, and it is not the one of this folder" in done.words
    assert "198.51.100.9 (horovod_master_node.public_ip) is in use by another machine" in done.words
    made = {request for request in cloud.requests if not request.startswith("GET ")}
    assert made == {"POST v3/auth/tokens"}
    assert (cluster.folder / ".ronde").stat().st_mode & 0o777 == 0o700


def test_a_cluster_of_that_name_in_another_project_is_not_in_the_way(cluster: Cluster, cloud: FakeCloud) -> None:
    # An administrator sees it.
    cloud.ports = {"m": Port("ronde-master", "ronde-cluster-ronde-another", project="another")}
    identity_of(cluster)
    cluster.run("plan", check=True)
