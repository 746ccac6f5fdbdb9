#!/usr/bin/env python3
"""Finds what the cloud has of this cluster and Terraform does not know of, and deletes it if asked to.

A Terraform that is stopped, by Ctrl-C, a kill or the loss of its machine, may not learn the id of what it was just
making. The next `apply` then finds a port or a name taken, or makes a second network; `destroy` leaves the first.
Everything that a cluster has is marked from the moment it is made (network.tf, machines.tf), so it can be found. The
mark holds the cluster's name and an identity that only this folder has: the state has it, and the file
.ronde/identities has all that there have been. So another's cluster of the same name is left alone.

    python3 leftovers.py            # lists it; status 1 if there is any, 2 if that cannot be told
    python3 leftovers.py --delete   # deletes it

The cloud and the login are those of the files here, of clouds.yaml, or of OS_* variables. Needs openstacksdk (pip
install openstacksdk).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

FOLDER = Path(__file__).resolve().parent

# What Terraform is asked for: it alone knows how its variable files are read.
SETTINGS = (
    "jsonencode({ mark = local.name_mark, auth = nonsensitive(var.auth_data), provider = var.openstack_provider })"
)

# What catalogues call block storage: its name of today, and those it has had.
VOLUMES = ("block-storage", "block-store", "volume", "volumev2", "volumev3")

# Whom a router's port on a subnet belongs to: of a plain router, one that has a second, and one that is everywhere.
INTERFACES = (
    "network:router_interface",
    "network:ha_router_replicated_interface",
    "network:router_interface_distributed",
)


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description="Finds what a stopped Terraform has left in the cloud.")
    parser.add_argument("--delete", action="store_true", help="delete it")
    installed = shutil.which("terraform") or shutil.which("tofu")
    parser.add_argument("--terraform", default=installed, help="the program; otherwise terraform or tofu")
    options = parser.parse_args()
    if options.terraform is None:
        give_up("neither terraform nor tofu is installed; --terraform names the program")
    # Where only some machines are made, Terraform cannot work out what is said of all, and warns before it answers.
    answer = terraform(options.terraform, "console", question=SETTINGS).splitlines()[-1]
    settings = json.loads(json.loads(answer))
    state = resources(json.loads(terraform(options.terraform, "show", "-json")))
    known = {str(resource["values"].get("id")) for resource in state}
    marks = own_marks(settings["mark"], state, FOLDER / ".ronde" / "identities")
    try:
        import openstack
        from keystoneauth1.exceptions import ClientException
    except ImportError:
        give_up("openstacksdk is not installed: pip install openstacksdk")
    try:
        cloud = openstack.connect(**login(settings))
        found = everything(cloud, marks)
        left = [(kind, one, delete) for kind, one, delete in found if one.id not in known]
        for kind, one, delete in left:
            print(f"{kind} {one.name or one.id} ({one.id}){': deleting' if options.delete else ''}", flush=True)
            if options.delete:
                delete(one)
    except (ClientException, openstack.exceptions.SDKException) as error:
        give_up(f"the cloud does not do as asked: {error}")
    if left and not options.delete:
        print("hint: python3 leftovers.py --delete deletes what is listed above", file=sys.stderr)
        return 1
    return 0


def give_up(why: str) -> NoReturn:
    """Say why nothing can be told, and end."""
    print(f"error: {why}", file=sys.stderr)
    sys.exit(2)


def terraform(program: str, *words: str, question: str = "") -> str:
    """Run Terraform here and return what it printed."""
    done = subprocess.run([program, *words], cwd=FOLDER, input=question, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        give_up(f"{program} {words[0]} failed (has `terraform init` been run?)\n{done.stderr.strip()}")
    return done.stdout


def resources(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all that the state holds and Terraform has made."""
    found = state.get("values", {}).get("root_module", {}).get("resources", [])
    return [resource for resource in found if resource["mode"] == "managed"]


def own_marks(name_mark: str, state: list[dict[str, Any]], file: Path) -> set[str]:
    """Return the marks of what is this folder's; none if it has never made anything."""
    identities = {resource["values"]["id"] for resource in state if resource["address"] == "terraform_data.identity"}
    # Clusters once had no identity. Their mark is the name alone, as long as their state has things of the cloud.
    is_old = not identities and any(resource["type"].startswith("openstack_") for resource in state)
    if file.exists():
        identities |= set(file.read_text().split())
    return {f"{name_mark}-{identity}" for identity in identities} | ({name_mark} if is_old else set())


def login(settings: dict[str, Any]) -> dict[str, Any]:
    """Return how to log in as Terraform would."""
    provider, auth = settings["provider"], settings["auth"]
    who = {
        "auth_url": provider["auth_url"],
        "project_name": provider["project_name"] or provider["tenant_name"],
        "user_domain_name": provider["user_domain_name"] or (auth["user_name"] and "Default"),
        "project_domain_name": provider["project_domain_name"] or (auth["user_name"] and "Default"),
        "username": auth["user_name"],
        "password": auth["password"],
    }
    kind = None
    if auth["application_credential_id"]:
        kind = "v3applicationcredential"
        who = {"auth_url": provider["auth_url"]} | {
            name: auth[name] for name in ("application_credential_id", "application_credential_secret")
        }
    given = {
        "cloud": provider["cloud"] or os.environ.get("OS_CLOUD"),
        "region_name": provider["region"],
        "auth_type": kind,
        "auth": {name: value for name, value in who.items() if value},
        "cacert": provider["cacert_file"],
        "verify": False if provider["insecure"] else None,
    }
    return {name: value for name, value in given.items() if value not in (None, {})}


def mark_of(one: Any) -> str:
    """Return the mark in the metadata of a server or volume."""
    return str(one.metadata.get("ronde_mark") or f"ronde-cluster-{one.metadata.get('ronde_cluster')}")


def everything(cloud: Any, marks: set[str]) -> Iterator[tuple[str, Any, Any]]:
    """Return all that carries one of the marks, in an order in which it can be deleted, and how."""
    compute, network = cloud.compute, cloud.network

    def delete_server(server: Any) -> None:
        compute.delete_server(server)
        compute.wait_for_delete(server)

    def interfaces(router: Any) -> Iterator[Any]:
        for owner in INTERFACES:
            yield from network.ports(device_id=router.id, device_owner=owner)

    def delete_interface(port: Any) -> None:
        network.remove_interface_from_router(port.device_id, None, port.id)

    def delete_router(router: Any) -> None:
        for port in interfaces(router):
            delete_interface(port)
        network.delete_router(router)

    def detach(attachment: Any) -> None:
        cloud.detach_volume(attachment.server, attachment.volume)

    def described(listed: Any) -> Iterator[Any]:
        for mark in sorted(marks):
            yield from listed(description=mark)

    servers = [server for server in compute.servers() if mark_of(server) in marks]
    volumes = []
    if any(service["type"] in VOLUMES for service in cloud.service_catalog):
        volumes = [volume for volume in cloud.block_storage.volumes() if mark_of(volume) in marks]
    for volume in volumes:
        for server in servers:
            if any(attachment["server_id"] == server.id for attachment in volume.attachments):
                # Terraform knows it by both ids.
                both = f"{server.id}/{volume.id}"
                yield "volume attachment", SimpleNamespace(id=both, name="", server=server, volume=volume), detach
    for server in servers:
        yield "server", server, delete_server
    for address in described(network.ips):
        yield "floating IP", address, network.delete_ip
    networks = list(described(network.networks))
    for router in described(network.routers):
        # Into networks of others somebody else may have led our router.
        for port in interfaces(router):
            if any(port.network_id == one.id for one in networks):
                yield "router interface", port, delete_interface
        yield "router", router, delete_router
    for port in described(network.ports):
        yield "port", port, network.delete_port
    for subnet in described(network.subnets):
        yield "subnet", subnet, network.delete_subnet
    for one in networks:
        yield "network", one, network.delete_network
    for rule in described(network.security_group_rules):
        yield "security group rule", rule, network.delete_security_group_rule
    for group in described(network.security_groups):
        yield "security group", group, network.delete_security_group
    for pair in compute.keypairs():
        if pair.name in marks:
            yield "key pair", pair, compute.delete_keypair
    for group in compute.server_groups():
        if group.name in marks:
            yield "server group", group, compute.delete_server_group
    for volume in volumes:
        yield "volume", volume, cloud.block_storage.delete_volume


if __name__ == "__main__":
    sys.exit(main())
