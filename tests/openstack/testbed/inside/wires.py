"""A mechanism driver of Neutron for a cloud of namespaces on one machine.

Every port is bound at once, since all servers hang on one bridge. This machine is the router of all networks: it has
the address of every router's port on the bridge, and sends what is for a floating IP to the server behind it. Security
groups are records only: nothing filters packets.
"""

from __future__ import annotations

import subprocess
from typing import Any

from neutron_lib import context
from neutron_lib.callbacks import events, registry, resources
from neutron_lib.plugins import constants, directory
from neutron_lib.plugins.ml2 import api

BRIDGE = "cloud"
TABLE = """table ip cloud {{}}
delete table ip cloud
table ip cloud {{
    chain out {{
        type nat hook output priority -100
        {rules}
    }}
}}
"""


class Wires(api.MechanismDriver):
    """Binds ports, and is the router."""

    def initialize(self) -> None:
        """Hear of floating IPs."""
        for event in (events.AFTER_CREATE, events.AFTER_UPDATE, events.AFTER_DELETE):
            registry.subscribe(self._floating, resources.FLOATING_IP, event)

    @property
    def connectivity(self) -> str:
        """Say what a bound port can do."""
        return "l2"

    def bind_port(self, port: Any) -> None:
        """Bind it to what there is."""
        segment = port.segments_to_bind[0]
        port.set_binding(segment[api.ID], "bridge", {"port_filter": False}, status="ACTIVE")

    def create_port_postcommit(self, port: Any) -> None:
        """Take a router's address."""
        self._address("replace", port)

    def delete_port_postcommit(self, port: Any) -> None:
        """Give a router's address back."""
        self._address("delete", port)

    def _address(self, verb: str, port: Any) -> None:
        if port.current["device_owner"] != "network:router_interface":
            return
        for fixed in port.current["fixed_ips"]:
            subnet = directory.get_plugin().get_subnet(context.get_admin_context(), fixed["subnet_id"])
            address = f"{fixed['ip_address']}/{subnet['cidr'].split('/')[1]}"
            subprocess.run(["ip", "address", verb, address, "dev", BRIDGE], check=verb == "replace")

    def _floating(self, *_event: Any, **_payload: Any) -> None:
        router = directory.get_plugin(constants.L3)
        rules = [
            f"ip daddr {known['floating_ip_address']} dnat to {known['fixed_ip_address']}"
            for known in router.get_floatingips(context.get_admin_context())
            if known["fixed_ip_address"]
        ]
        subprocess.run(["nft", "-f", "-"], input=TABLE.format(rules="\n".join(rules)), text=True, check=True)
