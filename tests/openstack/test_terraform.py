"""The Terraform module: its form, what it keeps in its folder, and what a plan with the real provider would make.

The cloud is a fake that only answers questions (fake_cloud.py); nothing is made. test_terraform_refusals.py has what is
refused; test_cloud.py makes it all, in a real cloud.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fake_cloud import KEY, PASSWORD, FakeCloud, Flavor, FloatingAddress
from terraform import DEPLOY, Cluster, identity_of, leftovers

# What the provider's versions 2 and 3 no longer have, as their upgrade guides say, of what a cluster could use.
REMOVED = {
    "openstack_blockstorage_volume_attach_v2",
    "openstack_blockstorage_volume_v1",
    "openstack_blockstorage_volume_v2",
    "openstack_compute_floatingip_associate_v2",
    "openstack_compute_floatingip_v2",
    "openstack_compute_secgroup_v2",
}


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


def test_a_second_apply_keeps_the_identity(cluster: Cluster) -> None:
    first = identity_of(cluster)
    assert identity_of(cluster) == first
    state = json.loads(cluster.run("show", "-json", check=True).output)
    found = leftovers.own_marks("ronde-cluster-ronde", leftovers.resources(state), cluster.folder / "none")
    assert found == {f"ronde-cluster-ronde-{first}"}


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


@pytest.mark.parametrize("workers", [0, 2])
def test_the_image_is_for_gpus_whether_there_are_workers_with_them_or_not(
    cluster: Cluster, cloud: FakeCloud, workers: int
) -> None:
    cloud.flavors["gpu"] = Flavor(extra_specs={"resources:VGPU": "1"})
    cluster.write(horovod_worker_node={"count": workers, "flavor_name": "gpu"})
    # What the cloud says of flavours is then in the state, where the console finds it.
    flavors = [f"-target=data.openstack_compute_flavor_v2.{whose}" for whose in ("master", "worker")]
    cluster.run("apply", "-auto-approve", *flavors, check=True)
    device = cluster.run("console", question="local.image_device", check=True)
    assert device.output.strip() == '"gpu"'


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
