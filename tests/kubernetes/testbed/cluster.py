"""A real Kubernetes cluster on this machine, as a context manager.

    with Cluster([5, 3, 2]) as cluster:
        cluster.apply({"apiVersion": "v1", "kind": "Pod", ...})
        cluster.kubectl("wait", "--for=condition=Ready", "pod/example")
        assert cluster.free_gpus() == {"node-1": 3, "node-2": 3, "node-3": 2}

Control plane and nodes are real; only the GPUs are pretended, and the machines are namespaces of this one
(namespaces.py). Any number of clusters can stand side by side. Nothing is left of one when the block ends, nor when
this process is killed, but a folder and cgroups, which the next cluster removes (leftovers.py). Needs root.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .control_plane import ControlPlane
from .errors import ClusterError
from .faults import Faults
from .images import pack_small_images
from .layout import MOST_NODES, program, require_system
from .leftovers import make_cgroup, make_folder, new_name, remove_cgroups, sweep
from .namespaces import Namespaces
from .node import Node, NodeSpec
from .runtime import ImageStore
from .simulated import Simulated, start_simulated

A_DAY = 24 * 60 * 60


class Cluster:
    """A cluster with these nodes, each a number of GPUs or a `NodeSpec`; they are called node-1, node-2, and so on.

    `images` are archives that all nodes have from the beginning, beside the small ones (images.py); they are unpacked
    once for all. `grace` is for how many seconds a node may be silent before it counts as lost; kubelets speak every
    five. `simulated` nodes stand beside the real ones (simulated.py). With `audit` the API server writes every request
    down in `control_plane.audit_log`.
    """

    def __init__(
        self,
        nodes: Sequence[int | NodeSpec] = (),
        *,
        images: Sequence[Path] = (),
        grace: int = 16,
        simulated: Simulated | None = None,
        audit: bool = False,
    ) -> None:
        self._wanted = nodes
        self._images = images
        self._later_images: list[Path] = []
        # Simulated nodes say once that they are ready, and then nothing more.
        self._grace = grace if simulated is None else A_DAY
        self._simulated = simulated
        self._audit = audit
        self._count = 0
        self._control_plane: ControlPlane | None = None
        self.nodes: dict[str, Node] = {}

    def __enter__(self) -> Cluster:
        require_system()
        sweep()
        self.name = new_name()
        self.folder = make_folder(self.name)
        try:
            self._start()
        except ClusterError as error:
            said = self._last_words()
            self.close()
            raise ClusterError(f"{error}\n{said}") from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _start(self) -> None:
        make_cgroup(self.name)
        environment = {"RONDE_TEST_CLUSTER": self.name}
        large = self._simulated is not None
        self._control_plane = ControlPlane(self.folder, environment, self._grace, large=large, audit=self._audit)
        self._store = ImageStore(self.folder / "images")
        nodes = [self._new_node(wanted) for wanted in self._wanted]
        with ThreadPoolExecutor(len(nodes) + 1) as pool:
            # Container runtimes need no API server, so they start beside it.
            control_plane = pool.submit(self._control_plane.start)
            self._store.fill([*pack_small_images(self.folder), *self._images], environment)
            for started in [pool.submit(node.start_runtime, self._store) for node in nodes]:
                started.result()
            control_plane.result()
        self._join(nodes)
        self._control_plane.await_controllers()
        for node in nodes:
            node.await_ready()
        if self._simulated is not None:
            start_simulated(self._simulated, self._control_plane, self.folder)

    def _new_node(self, wanted: int | NodeSpec) -> Node:
        self._count += 1
        if self._count > MOST_NODES:
            raise ClusterError(f"a test cluster has room for {MOST_NODES} nodes in its life")
        spec = wanted if isinstance(wanted, NodeSpec) else NodeSpec(gpus=wanted)
        node = Node(self._count, spec, self.control_plane, self.folder, self.name)
        self.nodes[node.name] = node
        return node

    def _join(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            for other in self.nodes.values():
                if other is not node and other.has_power():
                    node.add_route(other)
                    other.add_route(node)
            node.start()

    def close(self) -> None:
        """End the cluster. Nothing of it is left."""
        machines: list[Node | ControlPlane] = [*self.nodes.values()]
        if self._control_plane is not None:
            machines.append(self._control_plane)
        with ThreadPoolExecutor(len(machines) + 1) as pool:
            list(pool.map(lambda machine: machine.close(), machines))
        self.nodes.clear()
        self._control_plane = None
        try:
            remove_cgroups(self.name)
        finally:
            shutil.rmtree(self.folder)

    def _logs(self) -> list[Path]:
        return sorted([*self.folder.glob("logs/*.log"), *self.folder.glob("*/logs/*.log")])

    def _last_words(self) -> str:
        ends = ((log.relative_to(self.folder), log.read_text(errors="replace")[-1500:]) for log in self._logs())
        return "\n".join(f"--- {name}\n{end}" for name, end in ends)

    def save_logs(self, folder: Path) -> None:
        """Copy what all parts of the cluster have written, in place of what is in the folder."""
        shutil.rmtree(folder, ignore_errors=True)
        for log in self._logs():
            copy = folder / log.relative_to(self.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, copy)

    @property
    def control_plane(self) -> ControlPlane:
        """The control plane, while the cluster is up."""
        if self._control_plane is None:
            raise ClusterError("the cluster is not up")
        return self._control_plane

    @property
    def network(self) -> Namespaces:
        """The machine of the control plane, which reaches all nodes and pods: `network.run("ping", …)`."""
        return self.control_plane.machine

    # Talking to it.

    def kubeconfig(self, user: str = "admin", namespace: str = "default") -> Path:
        """Return a client configuration for this machine; the user `nobody` has no rights at all."""
        plane = self.control_plane
        return plane.access.by_token(user, f"127.0.0.1:{plane.port}", namespace)

    def account_kubeconfig(self, name: str, namespace: str = "default", port: int = 0) -> Path:
        """Return a client configuration with the rights of a service account, as its pods have them.

        `port` may be that of an API server with bad days (`faults`).
        """
        token = self.kubectl("create", "token", name, f"--namespace={namespace}").strip()
        plane = self.control_plane
        return plane.access.with_token(f"account-{name}", token, f"127.0.0.1:{port or plane.port}", namespace)

    def environment(self, user: str = "admin", namespace: str = "default") -> dict[str, str]:
        """Return what to add to the environment of a program that should use this cluster."""
        return {"KUBECONFIG": str(self.kubeconfig(user, namespace))}

    def kubectl_words(self, *words: object, user: str = "admin") -> list[str]:
        """Return a kubectl command, for those who start it themselves."""
        own = [program("kubectl"), f"--kubeconfig={self.kubeconfig(user)}", f"--cache-dir={self.folder / 'kubectl'}"]
        return [str(word) for word in [*own, *words]]

    def result(self, *words: object, user: str = "admin", **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a kubectl command to its end and return how it ended and what it printed."""
        command = self.kubectl_words(*words, user=user)
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    def kubectl(self, *words: object, user: str = "admin", **options: Any) -> str:
        """Run a kubectl command to its end and return what it printed; raise if it failed."""
        done = self.result(*words, user=user, **options)
        if done.returncode != 0:
            raise ClusterError(f"`kubectl {' '.join(map(str, words))}` failed: {done.stderr or done.stdout}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Make or change objects."""
        content = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--filename", "-", input=json.dumps(content))

    def get(self, path: str) -> dict[str, Any]:
        """Return what the API server has at a path; cheap enough to ask many times a second."""
        return self.control_plane.api.get(path)

    def free_gpus(self, resource: str = "nvidia.com/gpu") -> dict[str, int]:
        """Return how many GPUs of each node no pod has: those that have not ended count, also while they go."""
        free = {
            node["metadata"]["name"]: int(node["status"].get("allocatable", {}).get(resource, 0))
            for node in self.get("/api/v1/nodes")["items"]
        }
        for pod in self.get("/api/v1/pods")["items"]:
            node = pod["spec"].get("nodeName")
            if node in free and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                for container in pod["spec"]["containers"]:
                    free[node] -= int(container.get("resources", {}).get("requests", {}).get(resource, 0))
        return free

    # Changing it.

    def add_node(self, wanted: int | NodeSpec = 0) -> Node:
        """Add a node, and return it when it is ready."""
        node = self._new_node(wanted)
        node.start_runtime(self._store)
        for image in self._later_images:
            node.load_image(image)
        self._join([node])
        node.await_ready()
        return node

    def remove_node(self, name: str) -> None:
        """Take a node away for good: its power, and its object."""
        self.nodes.pop(name).close()
        self.kubectl("delete", "node", name, "--ignore-not-found")

    def load_image(self, archive: Path, nodes: Sequence[str] = ()) -> None:
        """Give an image to these nodes; to all if none are named, those that come later included."""
        if not nodes:
            self._later_images.append(archive)
        chosen = [self.nodes[name] for name in nodes] or list(self.nodes.values())
        # One after the other: each keeps the machine busy.
        for node in chosen:
            node.load_image(archive)

    def restart_api_server(self, away: float = 0.0, number: signal.Signals = signal.SIGKILL) -> None:
        """End the API server, leave it away for some seconds, and return when a new one answers.

        With SIGTERM it first waits for its clients, up to a minute.
        """
        self.control_plane.stop_api_server(number)
        time.sleep(away)  # sleep: its clients see that it is away
        self.control_plane.start_api_server()

    def faults(self) -> Faults:
        """Return an API server with bad days before this one (faults.py), to be entered."""
        return Faults(self.control_plane, self.folder)
