"""A fake of OpenStack's services, as much of them as a plan asks: who you are, what there is, what you may use.

Nothing can be made in it. Tests change what it holds and see what Terraform, with the real provider, says about it.

    with FakeCloud() as cloud:
        cloud.flavors["small"] = Flavor(vcpus=2)
        cloud.address                      # Keystone's, for auth_url
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PROJECT = "5f2c0000000000000000000000000001"
USER, PASSWORD = "anna", "correct-horse"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJh4Vw5JqVtfUVRKXUB5nF5hQx1Yy0mFZb9zIhF2kJ3w anna@laptop"


@dataclass
class Flavor:
    """A kind of machine."""

    vcpus: int = 2
    ram: int = 4096
    disk: int = 20
    extra_specs: dict[str, str] = field(default_factory=dict)


@dataclass
class FloatingAddress:
    """A public address of the project, and the port that has it."""

    port: str | None = None


@dataclass
class Port:
    """A port of a cluster's machine: of which kind, whose it is, the machine if it is there, and where."""

    tag: str
    mark: str = "ronde-cluster-ronde"
    device: str = "a-machine"
    status: str = "ACTIVE"
    project: str = PROJECT


class FakeCloud:
    """The fake, as a context manager, on a free port of this machine."""

    def __init__(self) -> None:
        self.flavors = {"small": Flavor()}
        self.images = {"debian-12": "11111111-1111-4111-8111-111111111111"}
        self.key_pairs = {"anna": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA anna"}
        self.networks = {"public": True}
        self.addresses: dict[str, FloatingAddress] = {}
        self.ports: dict[str, Port] = {}
        self.limits = {
            "maxTotalInstances": 10,
            "totalInstancesUsed": 0,
            "maxTotalCores": 20,
            "totalCoresUsed": 0,
            "maxTotalRAMSize": 65536,
            "totalRAMUsed": 0,
        }
        self.quota = dict.fromkeys(
            ("network", "subnet", "router", "floatingip", "port", "security_group", "security_group_rule"), 100
        )
        self.volume_quota = {"volumes": 10, "gigabytes": 1000}
        self.requests: list[str] = []

    def __enter__(self) -> FakeCloud:
        self._server = _Server(self)
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        self.address = f"{self.base}/v3"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, request: _Handler) -> tuple[int, Any]:
        """Return the status and the content that a request is answered with."""
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = parts.path.strip("/")
        self.requests.append(f"{method} {path}")
        if path == "v3/auth/tokens":
            return self._token(method, request)
        if request.headers.get("X-Auth-Token") != "a-token":
            return 401, {"error": {"code": 401, "message": "The request you have made requires authentication."}}
        if method == "GET":
            service, _, rest = path.partition("/")
            known = {"compute": self._compute, "image": self._image, "network": self._network, "volume": self._volume}
            answer = known.get(service)
            if answer is not None:
                return answer(rest, query)
        return 501, {"error": {"message": f"the fake does not know {method} {path}"}}

    def _token(self, method: str, request: _Handler) -> tuple[int, Any]:
        if method == "POST":
            identity = request.body["auth"]["identity"]
            user = identity.get("password", {}).get("user", {})
            if (user.get("name"), user.get("password")) != (USER, PASSWORD):
                message = "The request you have made requires authentication."
                return 401, {"error": {"code": 401, "title": "Unauthorized", "message": message}}
        endpoints = {"identity": "v3", "compute": "compute/v2.1", "image": "image", "network": "network"}
        endpoints["volumev3"] = "volume/v3"
        catalog = [
            {
                "id": kind,
                "type": kind,
                "name": kind,
                "endpoints": [
                    {"id": kind, "interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": url}
                ],
            }
            for kind, url in ((kind, f"{self.base}/{place}/") for kind, place in endpoints.items())
        ]
        domain = {"id": "default", "name": "Default"}
        token = {
            "methods": ["password"],
            "user": {"id": "0a", "name": USER, "domain": domain},
            "project": {"id": PROJECT, "name": "research", "domain": domain},
            "roles": [{"id": "0b", "name": "member"}],
            "catalog": catalog,
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "expires_at": "2096-01-01T00:00:00.000000Z",
        }
        return (201 if method == "POST" else 200), {"token": token}

    def _compute(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        _, _, rest = path.partition("/")
        if rest == "limits":
            # As the real one does for those who are no administrators.
            if "tenant_id" in query:
                return 403, {"forbidden": {"code": 403, "message": "Policy doesn't allow it to be performed."}}
            return 200, {"limits": {"rate": [], "absolute": self.limits}}
        if rest == "flavors/detail":
            return 200, {
                "flavors": [
                    {
                        "id": name,
                        "name": name,
                        "vcpus": flavor.vcpus,
                        "ram": flavor.ram,
                        "disk": flavor.disk,
                        "swap": "",
                    }
                    for name, flavor in self.flavors.items()
                ]
            }
        if rest.endswith("/os-extra_specs"):
            return 200, {"extra_specs": self.flavors[rest.split("/")[1]].extra_specs}
        if rest.startswith("os-keypairs/"):
            name = rest.split("/")[1]
            if name in self.key_pairs:
                return 200, {
                    "keypair": {"name": name, "public_key": self.key_pairs[name], "fingerprint": "", "user_id": "0a"}
                }
            return 404, {"itemNotFound": {"code": 404, "message": f"Keypair {name} not found for user 0a"}}
        return 404, {"itemNotFound": {"code": 404, "message": path}}

    def _image(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        if path != "v2/images":
            return 404, {}
        found = [
            {
                "id": known,
                "name": name,
                "status": "active",
                "created_at": "2026-01-01T00:00:00Z",
                "updated_at": "2026-01-01T00:00:00Z",
            }
            for name, known in self.images.items()
            if query.get("name", name) == name
        ]
        return 200, {"images": found}

    def _volume(self, path: str, _query: dict[str, str]) -> tuple[int, Any]:
        if path == f"v3/os-quota-sets/{PROJECT}":
            return 200, {"quota_set": {"id": PROJECT, **self.volume_quota}}
        return 404, {"itemNotFound": {"code": 404, "message": path}}

    def _network(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        kind = path.removeprefix("v2.0/")
        if kind == f"quotas/{PROJECT}":
            return 200, {"quota": self.quota}
        if kind == "networks":
            wanted = query.get("router:external")
            return 200, {
                "networks": [
                    {"id": f"id-of-{name}", "name": name, "router:external": external, "subnets": [], "tags": []}
                    for name, external in self.networks.items()
                    if query.get("name", name) == name and wanted in (None, str(external).lower())
                ]
            }
        if kind == "ports":
            tags = query.get("tags", "").split(",")
            return 200, {
                "ports": [
                    {"id": known, "tags": [port.tag], "description": port.mark}
                    | {"device_id": port.device, "status": port.status}
                    for known, port in self.ports.items()
                    if query.get("id", known) == known
                    and query.get("status", port.status) == port.status
                    and query.get("project_id", port.project) == port.project
                    and ("tags" not in query or port.tag in tags)
                ]
            }
        if kind == "floatingips":
            return 200, {
                "floatingips": [
                    {"id": address, "floating_ip_address": address, "floating_network_id": "id-of-public"}
                    | {"port_id": known.port, "tags": [], "status": "ACTIVE" if known.port else "DOWN"}
                    for address, known in self.addresses.items()
                    if query.get("floating_ip_address", address) == address
                ]
            }
        return 404, {"NeutronError": {"message": f"the fake has no {kind}"}}


class _Server(ThreadingHTTPServer):
    def __init__(self, cloud: FakeCloud) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cloud = cloud


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    body: Any = None

    def _reply(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = json.loads(self.rfile.read(length)) if length else None
        status, content = self.server.cloud.answer(method, self)
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("X-Subject-Token", "a-token")
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self._reply("GET")

    def do_POST(self) -> None:
        self._reply("POST")

    def do_DELETE(self) -> None:
        self._reply("DELETE")

    def log_message(self, *_words: object) -> None:
        pass
