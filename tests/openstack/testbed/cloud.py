"""A real OpenStack of Debian's packages on this machine: Keystone, Glance, Placement, Nova and Neutron.

Servers are network namespaces with an ssh server each (inside/servers.py), wired by inside/wires.py. There is no guest
kernel, no cloud-init, no block storage, and security groups filter nothing.

    with Cloud(logs) as cloud:
        cloud.api("GET", "compute", "/servers")
        subprocess.run([*cloud.machine.network(), "ssh", …])
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from .machine import CloudError, Machine, wait_for

KEYSTONE = "http://127.0.0.1:5000/v3"
SERVICES = {
    "identity": KEYSTONE,
    "image": "http://127.0.0.1:9292",
    "placement": "http://127.0.0.1:8778",
    "compute": "http://127.0.0.1:8774/v2.1",
    "network": "http://127.0.0.1:9696",
}
# An ordinary user, and the one who may do everything, as inside/bootstrap.sh makes them.
USER, PASSWORD, PROJECT = "anna", "correct-horse-battery", "research"
ADMIN = ("admin", "of-the-admin", "admin")

WSGI = (
    *("uwsgi", "--plugin", "python3", "--master", "--die-on-term", "--need-app", "--lazy-apps", "--enable-threads"),
    *("--processes", "2", "--threads", "1", "--buffer-size", "65535", "--add-header", "Connection: close"),
)
ML2 = "/etc/neutron/plugins/ml2/ml2_conf.ini"


class Cloud:
    """The cloud, as a context manager. It has a flavour `small`, an image `debian-12` and a network `public`."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._tokens: dict[str, str] = {}

    def __enter__(self) -> Cloud:
        self.machine = Machine(self.logs)
        try:
            self._start()
            self._fill()
        except BaseException:
            self.machine.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.machine.close()

    def _start(self) -> None:
        machine = self.machine
        machine.run("ip", "link", "add", "cloud", "type", "bridge")
        machine.run("ip", "link", "set", "cloud", "up")
        # The router's own address outside, from which floating IPs are reached.
        machine.run("ip", "address", "add", "198.51.100.1/24", "dev", "cloud")
        # Who has no password at all is locked out by sshd, even with a key.
        machine.run("usermod", "--password", "*", "debian")
        machine.run("install", "-d", "-o", "mysql", "/run/mysqld")
        machine.run("install", "-d", "-o", "rabbitmq", "/run/rabbitmq")
        machine.start(
            "mariadb", "mariadbd", "--user=mysql", "--bind-address=127.0.0.1", "--innodb-flush-log-at-trx-commit=0"
        )
        machine.start("memcached", "memcached", "-u", "memcache", "-l", "127.0.0.1")
        rabbit = {"RABBITMQ_NODENAME": "rabbit@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1"}
        settings = [f"{name}={value}" for name, value in (rabbit | {"ERL_EPMD_ADDRESS": "127.0.0.1"}).items()]
        machine.start(
            "rabbitmq", "runuser", "-u", "rabbitmq", "--", "env", *settings, "/usr/lib/rabbitmq/bin/rabbitmq-server"
        )
        self._await_port(3306)
        self._wsgi("keystone", 5000, "/usr/bin/keystone-wsgi-public")
        self._wsgi("placement", 8778, "/usr/bin/placement-api")
        machine.start("glance", "runuser", "-u", "glance", "--", "glance-api")
        self._await_port(5672)
        # As root, since they make the namespaces and wires.
        machine.start("neutron", "neutron-server", "--config-file", "/etc/neutron/neutron.conf", "--config-file", ML2)
        self._wsgi("nova", 8774, "/usr/bin/nova-api-wsgi")
        for name in ("nova-conductor", "nova-scheduler"):
            machine.start(name, "runuser", "-u", "nova", "--", name)
        # Debian would have it read of libvirt in a second file.
        machine.start("nova-compute", "nova-compute", "--config-file", "/etc/nova/nova.conf")
        for service in SERVICES:
            self._await_answer(service)
        self._await_compute()

    def _wsgi(self, user: str, port: int, file: str) -> None:
        self.machine.start(
            f"{user}-api",
            *WSGI,
            "--uid",
            user,
            "--gid",
            user,
            "--http-socket",
            f"127.0.0.1:{port}",
            "--wsgi-file",
            file,
        )

    def _await_port(self, port: int) -> None:
        def listens() -> bool:
            # Column 2 is the local address, 4 the state; 0A listens.
            rows = Path(f"/proc/{self.machine.pid}/net/tcp").read_text().splitlines()[1:]
            return any(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A" for row in rows)

        wait_for(f"a service at port {port}", listens, 120, self.machine.check)

    def _await_answer(self, service: str) -> None:
        def answers() -> bool:
            try:
                self.machine.call(_fetch, "GET", SERVICES[service], {}, None)
            except urllib.error.HTTPError as error:
                return error.code < 500
            except OSError:
                return False
            return True

        wait_for(f"the {service} service to answer", answers, 180, self.machine.check)

    def _await_compute(self) -> None:
        def up() -> bool:
            services = self.api("GET", "compute", "/os-services?binary=nova-compute", user=ADMIN)["services"]
            return any(service["state"] == "up" for service in services)

        wait_for("nova-compute", up, 120, self.machine.check)
        self.machine.run("nova-manage", "cell_v2", "discover_hosts", "--by-service")

    def _fill(self) -> None:
        flavors: dict[str, Any] = {"small": (1, 512), "large": (8, 8192)}
        for name, (cores, memory) in flavors.items():
            flavor = {"name": name, "vcpus": cores, "ram": memory, "disk": 5}
            self.api("POST", "compute", "/flavors", {"flavor": flavor}, ADMIN)
        image = {"name": "debian-12", "disk_format": "raw", "container_format": "bare", "visibility": "public"}
        made = self.api("POST", "image", "/v2/images", image, ADMIN)
        self.api("PUT", "image", f"/v2/images/{made['id']}/file", b"nothing that could boot", ADMIN)
        outside = {"name": "public", "router:external": True}
        outside |= {"provider:network_type": "flat", "provider:physical_network": "outside"}
        public = self.api("POST", "network", "/v2.0/networks", {"network": outside}, ADMIN)["network"]
        subnet = {"network_id": public["id"], "ip_version": 4, "cidr": "198.51.100.0/24", "enable_dhcp": False}
        self.api("POST", "network", "/v2.0/subnets", {"subnet": subnet}, ADMIN)

    def api(
        self, method: str, service: str, path: str, content: Any = None, user: tuple[str, str, str] | None = None
    ) -> Any:
        """Ask a service, as the ordinary user or as another, and return its answer."""
        name, password, project = user or (USER, PASSWORD, PROJECT)
        if name not in self._tokens:
            self._tokens[name] = self._login(name, password, project)
        headers = {"X-Auth-Token": self._tokens[name], "OpenStack-API-Version": "compute 2.90"}
        try:
            return self.machine.call(_fetch, method, SERVICES[service] + path, headers, content)[0]
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise CloudError(f"{method} {service}{path}: status {error.code}: {said}") from None

    def _login(self, name: str, password: str, project: str) -> str:
        domain = {"name": "Default"}
        identity = {
            "methods": ["password"],
            "password": {"user": {"name": name, "password": password, "domain": domain}},
        }
        scope = {"project": {"name": project, "domain": domain}}
        request = {"auth": {"identity": identity, "scope": scope}}
        _, headers = self.machine.call(_fetch, "POST", f"{KEYSTONE}/auth/tokens", {}, request)
        return str(headers["X-Subject-Token"])

    def everything(self) -> dict[str, list[str]]:
        """Return the names of all that the project has, apart from what it was born with."""
        project = self.project()
        listed = {
            "servers": self.api("GET", "compute", "/servers")["servers"],
            "key pairs": [pair["keypair"] for pair in self.api("GET", "compute", "/os-keypairs")["keypairs"]],
            "server groups": self.api("GET", "compute", "/os-server-groups")["server_groups"],
        }
        for kind in ("networks", "subnets", "routers", "ports", "floatingips", "security-groups"):
            of = self.api("GET", "network", f"/v2.0/{kind}?project_id={project}")
            listed[kind] = of[kind.replace("-", "_")]
        names = {
            kind: sorted(one.get("name") or one["id"] for one in found if one.get("name") != "default")
            for kind, found in listed.items()
        }
        return {kind: found for kind, found in names.items() if found}

    def project(self) -> str:
        """Return the id of the ordinary user's project."""
        projects = self.api("GET", "identity", "/auth/projects")["projects"]
        return str(next(project["id"] for project in projects if project["name"] == PROJECT))


def _fetch(method: str, address: str, headers: dict[str, str], content: Any) -> tuple[Any, Any]:
    if isinstance(content, bytes):
        data, kind = content, "application/octet-stream"
    else:
        data, kind = (None if content is None else json.dumps(content).encode()), "application/json"
    request = urllib.request.Request(address, data, {**headers, "Content-Type": kind}, method=method)
    # No proxy: the address is on the machine itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        text = answer.read()
        return (json.loads(text) if text and kind == "application/json" else None), answer.headers
