"""A node of the cluster: a machine with a kubelet, a container runtime, kube-proxy, and GPUs that are only pretended.

Inside, everything is where it would be on any node; containers' images and volumes lie in the node's folder.
Pods get addresses of the node's own network through a cable each, and reach other nodes' by its routes.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .control_plane import ControlPlane
from .errors import ClusterError, wait_for
from .layout import CONTROL_PLANE, DNS_SERVICE, DOMAIN, node_address, pod_network, program
from .leftovers import make_cgroup
from .namespaces import Namespaces, Process
from .runtime import ImageStore, Runtime


@dataclass(frozen=True)
class NodeSpec:
    """What a node has: GPUs, under a resource name, labels, taints (`key=value:NoSchedule`), and pretended cores."""

    gpus: int = 0
    resource: str = "nvidia.com/gpu"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[str] = ()
    cores: int = 64


class Node:
    """One node; `Cluster` makes it. It can be broken in the ways that real ones break."""

    def __init__(self, number: int, spec: NodeSpec, control_plane: ControlPlane, folder: Path, cluster: str) -> None:
        self.number = number
        self.name = f"node-{number}"
        self.address = node_address(number)
        self.spec = spec
        self.folder = folder / self.name
        self._cgroup = f"{cluster}/{self.name}"
        self._control_plane = control_plane
        self._environment = {"RONDE_TEST_CLUSTER": cluster}
        self._processes: dict[str, Process] = {}
        self._machine: Namespaces | None = None
        self._runtime: Runtime | None = None
        self._kubelets = 0
        self.folder.mkdir()

    def has_power(self) -> bool:
        """Tell whether anything can run on it."""
        return self._machine is not None

    @property
    def machine(self) -> Namespaces:
        """The node's namespaces."""
        if self._machine is None:
            raise ClusterError(f"{self.name} has no power")
        return self._machine

    @property
    def runtime(self) -> Runtime:
        """The node's container runtime."""
        if self._runtime is None:
            raise ClusterError(f"{self.name} has no power")
        return self._runtime

    def start_runtime(self, images: ImageStore) -> None:
        """Give it power, a network and a container runtime with these images. Needs no API server yet."""
        images.give(self.folder / "containerd")
        make_cgroup(self._cgroup)
        self._machine = Namespaces(self.name, self.folder / "logs", self._environment, self.spec.cores)
        switch, port = self._control_plane.machine, f"node{self.number}"
        switch.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(self.machine.pid))
        switch.run("ip", "link", "set", port, "master", "br0", "up")
        switch.run("ip", "route", "add", pod_network(self.number), "via", self.address)
        self.machine.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.machine.run("ip", "link", "set", "eth0", "up")
        # Whatever is nobody's goes to the control plane's machine, which knows all nodes and says no to the rest.
        self.machine.run("ip", "route", "add", "default", "via", CONTROL_PLANE)
        self._runtime = Runtime(self.machine, self.folder / "containerd", pod_network(self.number))
        self._processes["containerd"] = self._runtime.process

    def add_route(self, other: Node) -> None:
        """Tell it where the pods of another node are."""
        self.machine.run("ip", "route", "replace", pod_network(other.number), "via", other.address)

    def start_kubelet(self) -> None:
        """Start the kubelet, or start it again; `await_ready` then waits for that one."""
        self._kubelets += 1
        taints = [f"--register-with-taints={','.join(self.spec.taints)}"] if self.spec.taints else []
        labels = ",".join(f"{name}={value}" for name, value in self.spec.labels.items())
        self._start(
            "kubelet",
            program("kubelet"),
            f"--config={self._write_kubelet_config()}",
            f"--kubeconfig={self._kubeconfig()}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels={labels}",
            *taints,
        )

    def start(self) -> None:
        """Start what makes a node of the machine: kubelet, kube-proxy, and GPUs if it has any."""
        self.start_kubelet()
        self._start("kube-proxy", program("kube-proxy"), f"--config={self._write_proxy_config()}")
        if self.spec.gpus:
            gpus = ["--count", self.spec.gpus, "--resource", self.spec.resource]
            self._start("gpus", program("gpus"), *gpus)

    def await_ready(self, seconds: float = 90) -> None:
        """Wait until the cluster counts on it and on its GPUs, and services are reached from it."""
        wait_for(f"{self.name} to be ready with {self.spec.gpus} GPUs", self._ready, seconds, self._check)
        service = f"{DNS_SERVICE} . udp . 53"
        wait_for(f"services on {self.name}", lambda: service in self._service_rules(), seconds, self._check)

    def _ready(self) -> bool:
        # A kubelet knows nothing of the GPUs that the one before it had counted, until they are offered again.
        if self.spec.gpus and self._processes["gpus"].log.read_text().count("registered") < self._kubelets:
            return False
        status, text = self._control_plane.api.request("GET", f"/api/v1/nodes/{self.name}")
        if status != 200:
            return False
        about = json.loads(text)
        node = about["status"]
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in node.get("conditions", ()))
        # What keeps pods off a node until it is ready is taken away by somebody else, a moment later.
        kept_off = any(one["key"].startswith("node.kubernetes.io/") for one in about["spec"].get("taints", ()))
        return ready and not kept_off and int(node["allocatable"].get(self.spec.resource, 0)) == self.spec.gpus

    def _check(self) -> None:
        for process in self._processes.values():
            process.check()

    def _service_rules(self) -> str:
        try:
            return self.machine.run("nft", "list", "map", "ip", "kube-proxy", "service-ips")
        except ClusterError:
            # kube-proxy has not made it yet.
            return ""

    def load_image(self, archive: Path) -> None:
        """Bring an image in from an archive, as `docker save` writes them."""
        self.runtime.load(archive)

    # What can happen to a node.

    def freeze_kubelet(self) -> None:
        """Stop the kubelet in its tracks: the node goes silent, its containers run on."""
        self._processes["kubelet"].send(signal.SIGSTOP)

    def thaw_kubelet(self) -> None:
        """Let a frozen kubelet go on."""
        self._processes["kubelet"].send(signal.SIGCONT)

    def kill_kubelet(self) -> None:
        """Kill the kubelet; `start_kubelet` starts another."""
        self._processes.pop("kubelet").end()

    def set_link(self, state: str) -> None:
        """Cut the node off ("down"), which it and its pods notice only by silence, or connect it again ("up")."""
        self._control_plane.machine.run("ip", "link", "set", f"node{self.number}", state)

    def break_gpu(self) -> None:
        """Make one more of its GPUs unhealthy."""
        self._processes["gpus"].send(signal.SIGUSR1)

    def repair_gpus(self) -> None:
        """Make all of its GPUs healthy again."""
        self._processes["gpus"].send(signal.SIGUSR2)

    def freeze_gpus(self) -> None:
        """Stop what offers its GPUs in its tracks: a kubelet that is started meanwhile has none to give."""
        self._processes["gpus"].send(signal.SIGSTOP)

    def thaw_gpus(self) -> None:
        """Let what offers its GPUs go on, which offers them again to a kubelet that was started meanwhile."""
        self._processes["gpus"].send(signal.SIGCONT)

    def cut_power(self) -> None:
        """End everything on the node at once; nobody says goodbye."""
        self.set_link("down")
        self.machine.close()
        self._machine = None
        self._runtime = None
        self._processes.clear()
        self._control_plane.machine.run("ip", "route", "del", pod_network(self.number))

    def close(self) -> None:
        """End everything on the node."""
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    # Files that tell its programs what to do.

    def _start(self, name: str, *command: object) -> None:
        self._processes[name] = self.machine.start(name, *command)

    def _kubeconfig(self) -> Path:
        reached_as = [f"IP:{self.address}", f"DNS:{self.name}"]
        subject = f"/O=system:nodes/CN=system:node:{self.name}"
        shown = self._control_plane.authority.issue(self.name, subject, reached_as)
        return self._control_plane.access.by_certificate(self.name, shown)

    def _write_kubelet_config(self) -> Path:
        pki = self._control_plane.authority.certificate.file.parent
        return self._write_config(
            "kubelet",
            "kubelet.config.k8s.io/v1beta1",
            "KubeletConfiguration",
            address=self.address,
            authentication={
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            authorization={"mode": "Webhook"},
            tlsCertFile=str(pki / f"{self.name}.crt"),
            tlsPrivateKeyFile=str(pki / f"{self.name}.key"),
            cgroupDriver="cgroupfs",
            cgroupRoot=f"/{self._cgroup}",
            failCgroupV1=False,
            failSwapOn=False,
            oomScoreAdj=0,
            enforceNodeAllocatable=[],
            containerRuntimeEndpoint="unix:///run/containerd/containerd.sock",
            clusterDNS=[DNS_SERVICE],
            clusterDomain=DOMAIN,
            resolvConf="",
            # A full disk is this machine's, not the node's.
            imageGCHighThresholdPercent=100,
            imageGCLowThresholdPercent=99,
            evictionHard=dict.fromkeys(("imagefs.available", "nodefs.available", "nodefs.inodesFree"), "0%"),
            # Quicker than usual, so that tests need not wait for what has happened already.
            nodeStatusUpdateFrequency="2s",
            nodeLeaseDurationSeconds=20,
        )

    def _write_proxy_config(self) -> Path:
        kubeconfig = self._control_plane.access.by_token("system:kube-proxy")
        return self._write_config(
            "kube-proxy",
            "kubeproxy.config.k8s.io/v1alpha1",
            "KubeProxyConfiguration",
            mode="nftables",
            clientConnection={"kubeconfig": str(kubeconfig)},
            hostnameOverride=self.name,
            clusterCIDR="10.244.0.0/16",
            oomScoreAdj=0,
            # Its limits are this machine's; zero leaves them alone.
            conntrack={"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        )

    def _write_config(self, name: str, version: str, kind: str, **settings: object) -> Path:
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps({"apiVersion": version, "kind": kind, **settings}, indent=1))
        return file
