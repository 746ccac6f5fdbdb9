"""The control plane of a cluster on a machine of its own: etcd, API server, controllers, scheduler, and CoreDNS.

DNS is a process here instead of pods, behind a service at the usual address, so that pods find it as they do anywhere
and no node has to run it. The API server is reached from this machine through a door (binaries/door).
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from .access import Access, Api
from .certificates import Authority
from .errors import wait_for
from .layout import API_PORT, API_SERVICE, CONTROL_PLANE, DNS_SERVICE, DOMAIN, SERVICES, program
from .namespaces import Namespaces, Process

COREFILE = """.:53 {{
    errors
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig} test
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    cache 30
    loadbalance
}}
"""


class ControlPlane:
    """The control plane; `grace` is for how many seconds a node may be silent before it counts as lost.

    `large` lets controllers work at the pace of large clusters; `audit` has all requests written down, but those of the
    API server itself and of simulated nodes.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], grace: int, *, large: bool = False, audit: bool = False
    ) -> None:
        self._folder = folder
        self._grace = grace
        # Usually controllers hold themselves back to a few requests a second, which large clusters raise.
        self._rates = ["--kube-api-qps=1000", "--kube-api-burst=2000"] if large else []
        self.audit_log = folder / "audit.log" if audit else None
        self._processes: dict[str, Process] = {}
        self.authority = Authority(folder / "pki")
        self.access = Access(folder / "access", self.authority, f"{CONTROL_PLANE}:{API_PORT}")
        names = [
            "localhost",
            *(f"kubernetes{rest}" for rest in ("", ".default", ".default.svc", f".default.svc.{DOMAIN}")),
        ]
        reached_as = [
            *(f"DNS:{name}" for name in names),
            *(f"IP:{ip}" for ip in ("127.0.0.1", API_SERVICE, CONTROL_PLANE)),
        ]
        self.certificate = self.authority.issue("api", "/CN=kube-apiserver", reached_as)
        # How the API server shows kubelets who it is, for logs and commands in containers.
        self._kubelet_client = self.authority.issue("api-to-kubelets", "/O=system:masters/CN=kube-apiserver")
        self.machine = Namespaces("control-plane", folder / "logs", environment)
        try:
            self.machine.run("ip", "link", "add", "br0", "type", "bridge")
            self.machine.run("ip", "address", "add", f"{CONTROL_PLANE}/24", "dev", "br0")
            self.machine.run("ip", "link", "set", "br0", "up")
            self.port = self._open_door()
        except BaseException:
            self.machine.close()
            raise
        self.api = Api(self.port, self.access.token("admin"), self.authority.certificate.file)

    def _open_door(self) -> int:
        with loopback_socket() as listening:
            address = f"{CONTROL_PLANE}:{API_PORT}"
            self._processes["door"] = self.machine.start("door", program("door"), address, stdin=listening.fileno())
            port: int = listening.getsockname()[1]
            return port

    def start(self) -> None:
        """Start everything, and return when the API server answers."""
        data = self._folder / "etcd"
        # Nothing has to outlive the machine, so nothing has to reach the disk.
        self._start("etcd", "--data-dir", data, "--log-level", "warn", "--unsafe-no-fsync")
        self.start_api_server()
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self.access.by_token('system:kube-controller-manager')}",
            f"--cert-dir={self._folder / 'controllers'}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.authority.service_accounts.key}",
            f"--root-ca-file={self.authority.certificate.file}",
            f"--cluster-signing-cert-file={self.authority.certificate.file}",
            f"--cluster-signing-key-file={self.authority.certificate.key}",
            f"--node-monitor-grace-period={self._grace}s",
            "--node-monitor-period=1s",
            *self._rates,
        )
        self._start(
            "kube-scheduler",
            f"--kubeconfig={self.access.by_token('system:kube-scheduler')}",
            f"--cert-dir={self._folder / 'scheduler'}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            *self._rates,
        )
        corefile = self._folder / "Corefile"
        kubeconfig = self.access.by_token("coredns")
        corefile.write_text(COREFILE.format(domain=DOMAIN, kubeconfig=kubeconfig))
        self._start("coredns", "-conf", corefile)
        self._publish("default", "kubernetes", CONTROL_PLANE, [("https", "TCP", API_PORT)])
        self._publish_dns()

    def await_controllers(self) -> None:
        """Wait until namespaces have what their pods need, and names are answered."""
        accounts = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_for("the default service account", lambda: self._has(accounts), check=self.check)
        dns = self._processes["coredns"]
        wait_for("CoreDNS", lambda: "CoreDNS-" in dns.log.read_text(), check=dns.check)

    def _has(self, path: str) -> bool:
        return self.api.request("GET", path)[0] == 200

    def _start(self, name: str, *words: object) -> None:
        self._processes[name] = self.machine.start(name, program(name), *words)

    def start_api_server(self) -> None:
        """Start the API server, and return when it answers."""
        accounts = self.authority.service_accounts
        self._start(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={CONTROL_PLANE}",
            f"--secure-port={API_PORT}",
            # Who stands for it is written by us: a test may put its faults in between.
            "--endpoint-reconciler-type=none",
            f"--service-cluster-ip-range={SERVICES}",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--token-auth-file={self.access.token_file}",
            f"--client-ca-file={self.authority.certificate.file}",
            f"--tls-cert-file={self.certificate.file}",
            f"--tls-private-key-file={self.certificate.key}",
            f"--service-account-key-file={accounts.file}",
            f"--service-account-signing-key-file={accounts.key}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--kubelet-client-certificate={self._kubelet_client.file}",
            f"--kubelet-client-key={self._kubelet_client.key}",
            f"--kubelet-certificate-authority={self.authority.certificate.file}",
            "--kubelet-preferred-address-types=InternalIP",
            *self._audit_flags(),
        )
        wait_for("the API server", lambda: self._has("/readyz"), 120, self.check)

    def _audit_flags(self) -> list[str]:
        """Say that every request is to be written down, with who made it."""
        if self.audit_log is None:
            return []
        policy = self._folder / "audit-policy.json"
        content = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "omitManagedFields": True,
            "rules": [{"level": "None", "users": ["kwok", "system:apiserver"]}, {"level": "Metadata"}],
        }
        policy.write_text(json.dumps(content))
        return [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]

    def stop_api_server(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the API server: at once, as in a crash, or as it ends when told to."""
        self._processes["kube-apiserver"].end(number, 70)

    def check(self) -> None:
        """Raise if a part has ended by itself."""
        for process in self._processes.values():
            process.check()

    def _publish_dns(self) -> None:
        ports = [("dns", "UDP", 53), ("dns-tcp", "TCP", 53)]
        spec = {
            "clusterIP": DNS_SERVICE,
            "ports": [{"name": name, "protocol": protocol, "port": port} for name, protocol, port in ports],
        }
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns"}, "spec": spec}
        self.api.create("/api/v1/namespaces/kube-system/services", service)
        self._publish("kube-system", "kube-dns", CONTROL_PLANE, ports)

    def _publish(self, namespace: str, service: str, address: str, ports: list[tuple[str, str, int]]) -> None:
        """Say who stands for a service that selects no pods."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        content = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": name, "protocol": protocol, "port": port} for name, protocol, port in ports],
        }
        if self.api.request("GET", f"{path}/{service}")[0] == 200:
            self.api.replace(f"{path}/{service}", content)
        else:
            self.api.create(path, content)

    def answer_pods_at(self, port: int) -> None:
        """Let `kubernetes.default.svc` lead to a port of the control plane's machine, usually the API server's."""
        self._publish("default", "kubernetes", CONTROL_PLANE, [("https", "TCP", port)])

    def close(self) -> None:
        """End all of it."""
        self.machine.close()


def loopback_socket() -> socket.socket:
    """Return a socket that listens at a free port of this machine's loopback, and may be handed to another process."""
    return socket.create_server(("127.0.0.1", 0), backlog=128)
