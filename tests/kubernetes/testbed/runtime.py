"""The container runtime of a node, and the store of images that all nodes of a cluster begin with.

Images are unpacked once a cluster, by a runtime that does nothing else; nodes get the result as hard links. That is
safe because images are never changed in place: containers write above them, and the runtime adds files. Only its
databases are rewritten, so every node has its own copies of those.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import ClusterError, run, wait_for
from .namespaces import Namespaces, Process

PAUSE_IMAGE = "ronde.test/pause:1"

CONFIGURATION = """version = 2
root = "{root}"
state = "/run/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Not everybody may make processes less likely to be killed, not even every root.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{networks}"
"""


class Runtime:
    """containerd on a machine; images and containers lie in `folder`, pods get addresses of the network."""

    def __init__(self, machine: Namespaces, folder: Path, pod_network: str) -> None:
        self._machine = machine
        networks = folder / "networks"
        networks.mkdir(parents=True, exist_ok=True)
        addresses = {"type": "host-local", "subnet": pod_network, "routes": [{"dst": "0.0.0.0/0"}]}
        # A cable a pod, not a bridge: answers of a service then take the way back that was translated, everywhere.
        plugins = [{"type": "ptp", "ipam": addresses}]
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
        (networks / "10-pods.conflist").write_text(json.dumps(network))
        configuration = folder / "containerd.toml"
        configuration.write_text(CONFIGURATION.format(root=folder / "root", pause=PAUSE_IMAGE, networks=networks))
        self.process: Process = machine.start("containerd", "containerd", "--config", configuration)
        wait_for(f"containerd of {machine.name}", self._answers, 60, self.process.check)

    def _answers(self) -> bool:
        try:
            self.ctr("images", "list", "--quiet")
        except ClusterError:
            return False
        return True

    def ctr(self, *words: object) -> str:
        """Ask it something, among what belongs to Kubernetes."""
        return self._machine.run_inside("ctr", "--namespace", "k8s.io", *words)

    def load(self, archive: Path) -> None:
        """Bring an image in from an archive, as `docker save` and `archive.pack` write them."""
        self.ctr("images", "import", archive)


class ImageStore:
    """What a runtime has when it has unpacked some images and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill(self, archives: Sequence[Path], environment: Mapping[str, str]) -> None:
        """Unpack the images."""
        machine = Namespaces("images", self._folder / "logs", environment)
        try:
            runtime = Runtime(machine, self._folder, "10.244.0.0/24")
            for archive in archives:
                runtime.load(archive)
            # Told to end, it leaves its databases whole.
            runtime.process.end(signal.SIGTERM)
        finally:
            machine.close()

    def give(self, folder: Path) -> None:
        """Let the runtime of a node, which has not started yet, begin with these images."""
        folder.mkdir()
        run(["cp", "--archive", "--link", self._folder / "root", folder / "root"])
        for shared in (folder / "root").glob("*/*.db"):
            own = shared.with_suffix(".own")
            shutil.copy2(shared, own)
            own.rename(shared)
