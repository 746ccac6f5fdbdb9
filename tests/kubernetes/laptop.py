"""`ronde kube` as from a laptop beside the cluster: to its end, or while a test does something to the command.

The controller is one of these commands, with the rights that the manifests give it: as a process of this machine it can
be killed, and started again, in a moment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from deployed import MANAGER_IMAGE, MANIFESTS, TRAINING_IMAGE
from testbed import Cluster, ClusterError, Faults, wait_for

RONDE = Path(sys.executable).with_name("ronde")


def ronde_kube(
    cluster: Cluster, verb: str, *words: object, namespace: str = "default"
) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end, as from a laptop with this cluster's kubeconfig."""
    command = [str(word) for word in [RONDE, "kube", verb, *words]]
    environment = {**os.environ, **known(cluster.kubeconfig(namespace=namespace))}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)


def known(kubeconfig: Path) -> dict[str, str]:
    """Return what a command finds in its environment besides what everybody has."""
    return {"KUBECONFIG": str(kubeconfig), "RONDE_MANAGER_IMAGE": MANAGER_IMAGE, "LC_ALL": "C.UTF-8"}


class Command:
    """A command that runs. What it says goes to files, so it never waits for anybody to read."""

    def __init__(self, words: list[str], environment: Mapping[str, str], file: Path) -> None:
        self._files = (file.with_suffix(".out"), file.with_suffix(".err"))
        self._words = words
        with self._files[0].open("wb") as output, self._files[1].open("wb") as error:
            self._process = subprocess.Popen(
                words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output, stderr=error
            )

    def output(self) -> str:
        """Return what the training has said so far."""
        return self._files[0].read_text()

    def said(self) -> str:
        """Return what the command itself has said so far."""
        return self._files[1].read_text()

    def await_said(self, text: str, seconds: float = 60) -> None:
        """Wait until it has said something; raise if it ends without."""
        wait_for(f"{text!r} from {self}", lambda: text in self.said() or text in self.output(), seconds, self._check)

    def _check(self) -> None:
        if not self.running():
            raise ClusterError(f"{self} ended with status {self._process.returncode}")

    def running(self) -> bool:
        """Tell whether it has not ended."""
        return self._process.poll() is None

    def end(self, seconds: float = 90) -> int:
        """Wait for its end, and return its status."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{self} has not ended after {seconds:g} s") from None

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal, and wait until it has ended."""
        self.tell(number)
        self.end()

    def __str__(self) -> str:
        return f"`{' '.join(self._words[1:])}`, which said:\n{self.said()}\nand showed:\n{self.output()}"


class Laptop:
    """Where commands are started; as a context manager it ends those that still run."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._commands: list[Command] = []

    def __enter__(self) -> Laptop:
        return self

    def __exit__(self, *_error: object) -> None:
        for command in self._commands:
            if command.running():
                command.kill()

    def start(self, verb: str, *words: object, kubeconfig: Path | None = None, **environment: str) -> Command:
        """Start a verb, for the cluster's administrator unless a client configuration is named."""
        own = known(kubeconfig or self.cluster.kubeconfig())
        texts = [str(word) for word in (RONDE, "kube", verb, *words)]
        command = Command(texts, {**own, **environment}, self._folder / f"{verb}-{len(self._commands)}")
        self._commands.append(command)
        return command

    def start_run(
        self, name: str, gpus: object, script: str, *flags: object, ttl: int = 0, kubeconfig: Path | None = None
    ) -> Command:
        """Start `ronde kube run` with a line of shell for every rank. The job is not kept after its end."""
        about = ["--gpus", gpus, "--image", TRAINING_IMAGE, "--name", name, "--ttl", ttl, *flags]
        return self.start("run", *about, "--", "sh", "-c", script, kubeconfig=kubeconfig)

    def start_controller(self, identity: str = "first", kubeconfig: Path | None = None) -> Command:
        """Start a controller. One of the same identity takes over at once from one that was killed."""
        own = kubeconfig or self.cluster.account_kubeconfig(*MANAGER_ACCOUNT)
        return self.start("manager", "--listen", "127.0.0.1:0", kubeconfig=own, POD_NAME=identity)


# The account that the controller's pod has, and its namespace.
MANAGER_ACCOUNT = ("ronde-manager", "ronde-system")


def prepare_for_controllers(cluster: Cluster) -> None:
    """Apply all of the controller's manifests but the controller: it runs on the laptop."""
    documents = (MANIFESTS / "manager.yaml").read_text().split("\n---\n")
    without = "\n---\n".join(document for document in documents if "\nkind: Deployment\n" not in document)
    assert "kind: CustomResourceDefinition" in without
    assert "kind: Deployment" not in without
    cluster.kubectl("apply", "--filename", "-", input=without)
    # Established comes a moment before they can be listed.
    jobs = "/apis/ronde.dev/v1alpha1/rondejobs"
    wait_for("RondeJobs to be known", lambda: cluster.control_plane.api.request("GET", jobs)[0] == 200)


def through(cluster: Cluster, faults: Faults) -> Path:
    """Return the controller's client configuration by which it has the bad days of an API server."""
    return cluster.account_kubeconfig(*MANAGER_ACCOUNT, port=faults.port)
