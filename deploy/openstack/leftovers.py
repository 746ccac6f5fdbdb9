#!/usr/bin/env python3
"""Finds what the cloud has of this cluster and Terraform does not know of, and deletes it if asked to.

A Terraform that is stopped, by Ctrl-C, a kill or the loss of its machine, may not learn the id of what it was just
making. The next `apply` then finds a port or a name taken, or makes a second network; `destroy` leaves the first.
Everything that a cluster has is marked with its name from the moment it is made (network.tf, machines.tf), so it can be
found.

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
from typing import Any, NoReturn

FOLDER = Path(__file__).resolve().parent

# What Terraform is asked for: it alone knows how its variable files are read.
SETTINGS = (
    "jsonencode({ name = var.cluster_name, mark = local.mark, auth = nonsensitive(var.auth_data), "
    "provider = var.openstack_provider })"
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
    settings = json.loads(json.loads(terraform(options.terraform, "console", question=SETTINGS)))
    known = set(known_ids(json.loads(terraform(options.terraform, "show", "-json"))))
    try:
        import openstack
        from keystoneauth1.exceptions import ClientException
    except ImportError:
        give_up("openstacksdk is not installed: pip install openstacksdk")
    try:
        cloud = openstack.connect(**login(settings))
        found = everything(cloud, settings["name"], settings["mark"])
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


def known_ids(state: dict[str, Any]) -> Iterator[str]:
    """Return the ids of all that the state holds."""
    for resource in state.get("values", {}).get("root_module", {}).get("resources", []):
        yield str(resource["values"].get("id"))


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


def everything(cloud: Any, name: str, mark: str) -> Iterator[tuple[str, Any, Any]]:
    """Return all that carries the mark, in an order in which it can be deleted, and how."""
    compute, network = cloud.compute, cloud.network

    def delete_server(server: Any) -> None:
        compute.delete_server(server)
        compute.wait_for_delete(server)

    def delete_router(router: Any) -> None:
        for port in network.ports(device_id=router.id, device_owner="network:router_interface"):
            network.remove_interface_from_router(router, port_id=port.id)
        network.delete_router(router)

    for server in compute.servers():
        if server.metadata.get("ronde_cluster") == name:
            yield "server", server, delete_server
    for address in network.ips(description=mark):
        yield "floating IP", address, network.delete_ip
    for router in network.routers(description=mark):
        yield "router", router, delete_router
    for port in network.ports(description=mark):
        yield "port", port, network.delete_port
    for subnet in network.subnets(description=mark):
        yield "subnet", subnet, network.delete_subnet
    for one in network.networks(description=mark):
        yield "network", one, network.delete_network
    for group in network.security_groups(description=mark):
        yield "security group", group, network.delete_security_group
    for pair in compute.keypairs():
        if pair.name == mark:
            yield "key pair", pair, compute.delete_keypair
    for group in compute.server_groups():
        if group.name == mark:
            yield "server group", group, compute.delete_server_group
    if any(service["type"].startswith("volume") for service in cloud.service_catalog):
        for volume in cloud.block_storage.volumes():
            if volume.metadata.get("ronde_cluster") == name:
                yield "volume", volume, cloud.block_storage.delete_volume


if __name__ == "__main__":
    sys.exit(main())
