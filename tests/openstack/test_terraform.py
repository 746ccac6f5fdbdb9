"""The Terraform module: its form, every refusal and its words, and what a plan with the real provider would make.

The cloud is a fake that only answers questions (fake_cloud.py); nothing is made. test_cloud.py makes it, in a real one.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cloud import PASSWORD, USER, FakeCloud, Flavor, FloatingAddress, Port
from terraform import DEPLOY, Cluster

# What leftovers.py has: it lies in a folder that is not one of Python's.
leftovers = SimpleNamespace(**runpy.run_path(str(DEPLOY / "leftovers.py")))

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJh4Vw5JqVtfUVRKXUB5nF5hQx1Yy0mFZb9zIhF2kJ3w anna@laptop"

# What the provider's versions 2 and 3 no longer have, as their upgrade guides say, of what a cluster could use.
REMOVED = {
    "openstack_blockstorage_volume_attach_v2",
    "openstack_blockstorage_volume_v1",
    "openstack_blockstorage_volume_v2",
    "openstack_compute_floatingip_associate_v2",
    "openstack_compute_floatingip_v2",
    "openstack_compute_secgroup_v2",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Make a folder that is initialised once, for all others to be copies of."""
    return Cluster(tmp_path_factory.mktemp("template"), {})


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


@pytest.fixture
def cluster(template: Cluster, tmp_path: Path, cloud: FakeCloud) -> Cluster:
    """Return a cluster that can be planned."""
    provider = {
        "auth_url": cloud.address,
        "project_name": "research",
        "region": "RegionOne",
        "user_domain_name": "Default",
    }
    variables = {
        "auth_data": {"user_name": USER, "password": PASSWORD},
        "openstack_provider": provider,
        "horovod_master_node": {"flavor_name": "small", "image_name": "debian-12", "public_key": KEY},
        "horovod_worker_node": {"count": 2},
        "admin_cidr": "203.0.113.7/32",
    }
    return Cluster(tmp_path / "cluster", variables, template.folder)


def test_the_files_are_formatted(template: Cluster) -> None:
    done = template.run("fmt", "-check", "-diff", "-recursive", str(DEPLOY))
    assert done.status == 0, done.text


def test_the_configuration_is_valid(template: Cluster) -> None:
    found = json.loads(template.run("validate", "-json").output)
    # The provider's own default for load balancers, which nobody here has, makes it say this.
    others = [one for one in found["diagnostics"] if "use_octavia" not in one["detail"]]
    assert found["valid"], others
    assert others == []


def test_everything_used_is_in_the_old_and_the_new_provider() -> None:
    text = "".join(file.read_text() for file in DEPLOY.glob("*.tf"))
    used = set(re.findall(r'^(?:resource|data) "(openstack_\w+)"', text, re.MULTILINE))
    assert used
    assert not used & REMOVED


def test_no_lock_file_state_key_or_password_gets_into_a_repository() -> None:
    ignored = (DEPLOY / ".gitignore").read_text().splitlines()
    files = {"/.terraform*", "/*.tfstate*", "/*.tfplan", "/auth_data.auto.tfvars", "/clouds.yaml", "/secure.yaml"}
    assert files | {"/.ronde/", "/local/", "/share/"} <= set(ignored)
    assert not list(DEPLOY.glob(".terraform.lock.hcl"))


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


def identity_of(cluster: Cluster) -> str:
    """Give a cluster its identity, for which nothing is made in the cloud, and return that."""
    cluster.run("apply", "-auto-approve", "-target=terraform_data.identity", check=True)
    return (cluster.folder / ".ronde" / "identities").read_text().strip()


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


def test_a_second_apply_keeps_the_identity(cluster: Cluster) -> None:
    first = identity_of(cluster)
    assert identity_of(cluster) == first
    state = json.loads(cluster.run("show", "-json", check=True).output)
    found = leftovers.own_marks("ronde-cluster-ronde", leftovers.resources(state), cluster.folder / "none")
    assert found == {f"ronde-cluster-ronde-{first}"}


def test_leftovers_are_looked_for_by_every_identity_that_the_folder_had(tmp_path: Path) -> None:
    identity = {"address": "terraform_data.identity", "type": "terraform_data", "values": {"id": "2"}}
    server = {
        "address": "openstack_compute_instance_v2.master",
        "type": "openstack_compute_instance_v2",
        "values": {"id": "s"},
    }
    file = tmp_path / "identities"
    # Nothing has been made; before there were identities; before and after `destroy`.
    assert leftovers.own_marks("ronde-cluster-ronde", [], file) == set()
    assert leftovers.own_marks("ronde-cluster-ronde", [server], file) == {"ronde-cluster-ronde"}
    assert leftovers.own_marks("ronde-cluster-ronde", [identity, server], file) == {"ronde-cluster-ronde-2"}
    file.write_text("1\n2\n")
    assert leftovers.own_marks("ronde-cluster-ronde", [], file) == {"ronde-cluster-ronde-1", "ronde-cluster-ronde-2"}


def test_a_folder_that_was_moved_removes_its_own_files_with_the_cluster(cluster: Cluster) -> None:
    cluster.run("apply", "-auto-approve", "-target=terraform_data.files", check=True)
    before, cluster.folder = cluster.folder, cluster.folder.with_name("moved")
    before.rename(cluster.folder)
    # Where it was there is another now.
    before.mkdir()
    for folder in (before, cluster.folder):
        (folder / "inventory.yaml").touch()
    cluster.run("destroy", "-auto-approve", check=True)
    assert (before / "inventory.yaml").exists()
    assert not (cluster.folder / "inventory.yaml").exists()


def test_what_the_cloud_no_longer_has_keeps_a_cluster_only_until_it_is_not_asked(
    cluster: Cluster, cloud: FakeCloud
) -> None:
    cluster.write(horovod_master_node={"public_key": None, "key_pair": "anna"}, image="~/image.tar")
    cluster.run("apply", "-auto-approve", "-target=terraform_data.files", check=True)
    del cloud.key_pairs["anna"]
    cloud.images.clear()
    refused = cluster.run("destroy", "-auto-approve")
    assert refused.status == 1
    # The image and the archive, which are missing as well, are no reason: only the provider insists.
    assert refused.text.count("Error: ") == 1, refused.text
    assert "horovod_master_node.key_pair: see `openstack keypair list`" in refused.words
    cluster.run("destroy", "-auto-approve", "-refresh=false", check=True)
    assert leftovers.resources(json.loads(cluster.run("show", "-json", check=True).output)) == []


class Things(SimpleNamespace):
    """Things of a cloud as OpenStack's library lists them: by their description, if one is asked for."""

    def __call__(self, **wanted: str) -> list[SimpleNamespace]:
        return [one for one in self.all if all(getattr(one, name) == value for name, value in wanted.items())]


def thing(name: str, **attributes: Any) -> SimpleNamespace:
    return SimpleNamespace(id=f"id-of-{name}", name=name, **{"description": "", "metadata": {}} | attributes)


class FakeLibrary:
    """A cloud as OpenStack's library shows it; notes what is deleted."""

    def __init__(self, **things: list[SimpleNamespace]) -> None:
        self.deleted: list[str] = []
        self.things = things
        self.compute = self.network = self.block_storage = self
        self.service_catalog = [{"type": "volumev3"}]

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("delete_", "remove_", "detach_")):
            return lambda *what: self.deleted.append(
                " ".join([name, *(getattr(one, "id", one) for one in what if one)])
            )
        return Things(all=self.things.get(name, []))


def test_leftovers_are_this_folders_and_not_those_of_another_cluster_of_that_name() -> None:
    marks = {"ours": "ronde-cluster-ronde-1", "theirs": "ronde-cluster-ronde-2", "old": "ronde-cluster-ronde"}
    metadata = {whose: {"ronde_cluster": "ronde", "ronde_mark": mark} for whose, mark in marks.items()}
    metadata["old"] = {"ronde_cluster": "ronde"}
    cloud = FakeLibrary(
        servers=[thing(whose, metadata=metadata[whose]) for whose in marks] + [thing("nobodys")],
        networks=[thing(whose, description=mark) for whose, mark in marks.items()],
        keypairs=[thing(mark) for mark in marks.values()],
        volumes=[thing(whose, metadata=metadata[whose], attachments=[]) for whose in marks],
    )

    def found(*marks: str) -> list[str]:
        return [f"{kind} {one.name}" for kind, one, _ in leftovers.everything(cloud, set(marks))]

    assert found() == []
    ours = found("ronde-cluster-ronde-1")
    assert ours == ["server ours", "network ours", "key pair ronde-cluster-ronde-1", "volume ours"]
    old = found("ronde-cluster-ronde")
    assert old == ["server old", "network old", "key pair ronde-cluster-ronde", "volume old"]


@pytest.mark.parametrize(
    ("service", "expected"), [("volumev3", True), ("block-storage", True), ("block-store", True), ("compute", False)]
)
def test_volumes_are_looked_for_wherever_a_cloud_has_them(service: str, expected: bool) -> None:
    cloud = FakeLibrary(volumes=[thing("share", metadata={"ronde_mark": "ronde-cluster-ronde-1"}, attachments=[])])
    cloud.service_catalog = [{"type": service}]
    found = [kind for kind, _, _ in leftovers.everything(cloud, {"ronde-cluster-ronde-1"})]
    assert found == (["volume"] if expected else [])


@pytest.mark.parametrize("owner", leftovers.INTERFACES)
def test_leftovers_of_a_router_and_of_a_volume_that_are_known_are_found(owner: str) -> None:
    mark = "ronde-cluster-ronde-1"
    inside = thing("inside", device_id="id-of-router", device_owner=owner, network_id="id-of-network")
    elsewhere = thing("elsewhere", device_id="id-of-router", device_owner=owner, network_id="id-of-another")
    cloud = FakeLibrary(
        servers=[thing("master", metadata={"ronde_mark": mark})],
        routers=[thing("router", description=mark)],
        networks=[thing("network", description=mark)],
        ports=[inside, elsewhere],
        volumes=[thing("share", metadata={"ronde_mark": mark}, attachments=[{"server_id": "id-of-master"}])],
    )
    found = list(leftovers.everything(cloud, {mark}))
    assert [f"{kind} {one.id}" for kind, one, _ in found] == [
        "volume attachment id-of-master/id-of-share",
        "server id-of-master",
        "router interface id-of-inside",
        "router id-of-router",
        "network id-of-network",
        "volume id-of-share",
    ]
    for kind, one, delete in found:
        if kind in ("volume attachment", "router interface", "router"):
            delete(one)
    assert cloud.deleted == [
        "detach_volume id-of-master id-of-share",
        "remove_interface_from_router id-of-router id-of-inside",
        "remove_interface_from_router id-of-router id-of-inside",
        "remove_interface_from_router id-of-router id-of-elsewhere",
        "delete_router id-of-router",
    ]


def test_a_plan_has_one_master_two_workers_and_the_ways_to_them(cluster: Cluster) -> None:
    planned = cluster.planned()
    names = [
        planned[f"openstack_compute_instance_v2.{address}"]["name"] for address in ("master", "worker[0]", "worker[1]")
    ]
    assert names == ["ronde-master", "ronde-worker-1", "ronde-worker-2"]
    assert planned["openstack_compute_keypair_v2.cluster[0]"]["public_key"] == KEY
    for kind in ("network", "subnet", "router", "router_interface"):
        assert f"openstack_networking_{kind}_v2.cluster[0]" in planned
    assert planned["openstack_networking_router_v2.cluster[0]"]["external_network_id"] == "id-of-public"
    assert planned["openstack_networking_floatingip_v2.master[0]"]["pool"] == "public"
    assert 'terraform_data.ready["ronde-worker-2"]' in planned
    assert "terraform_data.configure[0]" in planned


def test_only_ssh_and_jupyter_are_open_and_only_to_the_administrators(cluster: Cluster) -> None:
    cluster.write(admin_cidr="203.0.113.7/32, 2001:db8::/64")
    rules = [after for address, after in cluster.planned().items() if "secgroup_rule" in address]
    allowed = {("203.0.113.7/32", "IPv4"), ("2001:db8::/64", "IPv6")}
    opened = set()
    for rule in rules:
        assert rule["direction"] == "ingress"
        # The other end is a group, which the next test looks at, if there is no address.
        if "remote_ip_prefix" not in rule:
            continue
        assert (rule["remote_ip_prefix"], rule["ethertype"]) in allowed
        assert rule["protocol"] == "tcp"
        assert rule["port_range_min"] == rule["port_range_max"]
        opened.add(rule["port_range_min"])
    assert opened == {22, 8888}


def test_every_rule_without_an_address_names_the_cluster_group(cluster: Cluster) -> None:
    resources = cluster.plan()["configuration"]["root_module"]["resources"]
    rules = {
        resource["address"]: resource["expressions"] for resource in resources if "secgroup_rule" in resource["type"]
    }
    inside = rules["openstack_networking_secgroup_rule_v2.cluster"]
    assert "openstack_networking_secgroup_v2.cluster.id" in inside["remote_group_id"]["references"]
    assert "openstack_networking_secgroup_v2.cluster.id" in inside["security_group_id"]["references"]
    assert set(rules) == {f"openstack_networking_secgroup_rule_v2.{name}" for name in ("cluster", "access")}
    ports = {resource["address"]: resource["expressions"] for resource in resources if "_port_v2" in resource["type"]}
    access = "openstack_networking_secgroup_v2.access.id"
    assert access in ports["openstack_networking_port_v2.master"]["security_group_ids"]["references"]
    assert access not in ports["openstack_networking_port_v2.worker"]["security_group_ids"]["references"]


def test_no_secret_is_planned_for_the_state(cluster: Cluster) -> None:
    plan = cluster.plan()
    text = json.dumps(
        {name: plan[name] for name in ("planned_values", "prior_state", "resource_changes", "output_changes")}
    )
    assert PASSWORD not in text
    for change in plan["resource_changes"]:
        after = change["change"]["after"] or {}
        for name in ("user_data", "admin_pass", "private_key"):
            assert not after.get(name), change["address"]
    # A pair that is given its public half never has a private one.
    assert KEY in text


def test_ansible_runs_again_when_something_else_goes_into_the_image(cluster: Cluster) -> None:
    image = cluster.folder / "image"
    for name in ("deploy/images/cpu.Dockerfile", "deploy/images/files/sshd", "examples/digits.py", "dist/ronde-1.whl"):
        (image / name).parent.mkdir(parents=True, exist_ok=True)
        (image / name).write_text(name)

    def trigger() -> str:
        return str(cluster.planned()["terraform_data.configure[0]"]["triggers_replace"]["image"])

    seen = [trigger()]
    # No build reads this.
    (image / "notes.txt").touch()
    assert trigger() == seen[0]
    for name in ("deploy/images/files/sshd", "dist/ronde-1.whl"):
        (image / name).write_text("changed")
        seen.append(trigger())
    assert len(set(seen)) == 3


@pytest.mark.parametrize("name", ["~/image.tar", "image.tar"])
def test_the_archive_of_an_image_is_known_by_its_whole_path(cluster: Cluster, tmp_path: Path, name: str) -> None:
    home = tmp_path if name.startswith("~") else cluster.folder
    (home / "image.tar").touch()
    cluster.write(image=name)
    done = cluster.run("console", question="local.image", env={"HOME": str(tmp_path)}, check=True)
    assert json.loads(done.output) == str(home / "image.tar")


def test_machines_only_are_made_without_ansible(cluster: Cluster) -> None:
    cluster.write(configure=False)
    planned = cluster.planned()
    assert not [address for address in planned if address.startswith("terraform_data.configure")]
    assert 'terraform_data.ready["ronde-master"]' in planned


def test_a_network_that_is_there_and_a_given_address_are_used(cluster: Cluster, cloud: FakeCloud) -> None:
    cloud.networks["lab"] = False
    cloud.addresses["198.51.100.9"] = FloatingAddress()
    cluster.write(network={"name": "lab"}, horovod_master_node={"public_ip": "198.51.100.9"})
    planned = cluster.planned()
    assert not [address for address in planned if re.search(r"(network|subnet|router|floatingip)_v2\.", address)]
    assert planned["openstack_networking_port_v2.worker[1]"]["network_id"] == "id-of-lab"
    assert planned["openstack_networking_floatingip_associate_v2.master[0]"]["floating_ip"] == "198.51.100.9"


def test_a_given_address_tells_where_the_router_leads(cluster: Cluster, cloud: FakeCloud) -> None:
    cloud.networks["other"] = True
    cloud.addresses["198.51.100.9"] = FloatingAddress()
    cluster.write(horovod_master_node={"public_ip": "198.51.100.9"})
    planned = cluster.planned()
    assert planned["openstack_networking_router_v2.cluster[0]"]["external_network_id"] == "id-of-public"


def test_machines_can_do_without_a_public_address(cluster: Cluster, cloud: FakeCloud) -> None:
    cloud.networks["lab"] = False
    cluster.write(network={"name": "lab"}, horovod_master_node={"public_ip": "none"})
    assert not [address for address in cluster.planned() if "floatingip" in address]


def test_a_key_pair_of_the_project_is_used_as_it_is(cluster: Cluster) -> None:
    cluster.write(horovod_master_node={"public_key": None, "key_pair": "anna"})
    planned = cluster.planned()
    assert "openstack_compute_keypair_v2.cluster[0]" not in planned
    assert planned["openstack_compute_instance_v2.worker[0]"]["key_pair"] == "anna"


def test_the_key_of_the_user_is_taken_without_a_word(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(f"{KEY}\n")
    cluster.write(horovod_master_node={"public_key": None})
    shown = cluster.run("plan", env={"HOME": str(tmp_path)}, check=True).text
    assert KEY in shown


def test_volumes_groups_and_gpus_are_planned(cluster: Cluster, cloud: FakeCloud) -> None:
    cloud.flavors["gpu"] = Flavor(disk=0, extra_specs={"pci_passthrough:alias": "a100:2", "resources:VGPU": "1"})
    cluster.write(
        horovod_master_node={"volume_size": 50, "volume_type": "ssd"},
        horovod_worker_node={"count": 1, "flavor_name": "gpu", "boot_volume_size": 40},
        server_group="anti-affinity",
        framework="torch",
    )
    plan = cluster.plan()
    planned = {change["address"]: change["change"]["after"] for change in plan["resource_changes"]}
    share = planned["openstack_blockstorage_volume_v3.share[0]"]
    assert (share["size"], share["enable_online_resize"]) == (50, True)
    assert "openstack_compute_volume_attach_v2.share[0]" in planned
    assert planned["openstack_compute_servergroup_v2.cluster[0]"]["policies"] == ["anti-affinity"]
    disk = planned["openstack_compute_instance_v2.worker[0]"]["block_device"][0]
    assert (disk["volume_size"], disk["delete_on_termination"]) == (40, True)
    line = plan["planned_values"]["outputs"]["horovodrun"]["value"]
    assert line == "horovodrun -np 4 -H host1:1,host2:3 -p 12345 python /examples/torch_digits.py"


def test_the_line_of_the_users_is_an_output(cluster: Cluster) -> None:
    cluster.write(horovod_worker_node={"count": 1})
    outputs = cluster.plan()["planned_values"]["outputs"]
    line = "horovodrun -np 2 -H host1:1,host2:1 -p 12345 python /examples/tensorflow2_mnist.py"
    assert outputs["horovodrun"]["value"] == line
    assert outputs["jupyter_token"]["value"].endswith("docker exec horovod_master cat /run/ronde/jupyter-token.1000")
