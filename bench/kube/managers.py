"""The managers that are compared: ours, and the MPI Operator. How each is installed, started, and told of a job.

Both run beside the control plane, as processes with the rights of the service account that their own manifests make, so
that their requests can be told apart and their memory be read. Their jobs ask for the same: so many nodes' GPUs, with
one process each.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from testbed import Cluster, wait_for
from testbed.layout import API_PORT, CONTROL_PLANE, program
from testbed.namespaces import Process

from harness.environment import ROOT


@dataclass(frozen=True)
class Work:
    """A job as both managers can be asked for: nodes, the GPUs of each, and what trains there."""

    name: str
    nodes: int
    gpus: int
    image: str = "none"
    command: Sequence[str] = ("true",)


class Manager(Protocol):
    """A manager of jobs, and what must be known to watch it."""

    name: str
    # Whose rights it has.
    account: str
    namespace: str
    # Where its jobs are in the API.
    jobs: str
    # The label of pods that has the job's name, and the one by which the pod is known whose end is the job's.
    job_label: str
    chief: tuple[str, str]

    def manifest(self) -> Path:
        """Return what is applied to install it. Its deployment is taken out again, since it runs beside the cluster."""

    def command(self, kubeconfig: Path) -> list[object]:
        """Return how it is started."""

    def job(self, work: Work) -> dict[str, Any]:
        """Describe a job."""

    def trains(self, pods: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        """Return those of a job's pods that have GPUs."""

    def states(self, job: dict[str, Any]) -> list[str]:
        """Return the states that a job object is in, `SUCCEEDED` among them when its manager says so."""


SUCCEEDED = "succeeded"


@dataclass(frozen=True)
class Ronde:
    """Our controller, from the wheel."""

    programs: Path
    manager_image: str = "none"
    name: str = "ronde"
    # Whether its jobs say that their image has Ronde in it.
    image_has_ronde: bool = False
    account: str = "ronde-manager"
    namespace: str = "ronde-system"
    jobs: str = "/apis/ronde.dev/v1alpha1/namespaces/default/rondejobs"
    job_label: str = "ronde.dev/job"
    chief: tuple[str, str] = ("ronde.dev/role", "chief")

    def manifest(self) -> Path:
        """Return the one of deploy/kubernetes."""
        return ROOT / "deploy" / "kubernetes" / "manager.yaml"

    def command(self, kubeconfig: Path) -> list[object]:
        """Return the command of that manifest's pod."""
        own = [self.programs / "ronde", "kube", "manager", "--manager-image", self.manager_image]
        # Each of two pods may have port 8080, but not each of two processes.
        own += ["--listen", "127.0.0.1:8081"]
        return ["env", f"KUBECONFIG={kubeconfig}", f"POD_NAMESPACE={self.namespace}", *own]

    def job(self, work: Work) -> dict[str, Any]:
        """Describe a `RondeJob`; its chief is on one of the nodes."""
        spec = {"gpus": work.nodes * work.gpus, "maxGpusPerNode": work.gpus}
        spec |= {"image": work.image, "imageHasRonde": self.image_has_ronde, "command": list(work.command)}
        return {"apiVersion": "ronde.dev/v1alpha1", "kind": "RondeJob", "metadata": {"name": work.name}, "spec": spec}

    def trains(self, pods: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        """Return all: the chief has GPUs, too."""
        return pods

    def states(self, job: dict[str, Any]) -> list[str]:
        """Return its phase."""
        return [str((job.get("status") or {}).get("phase", "")).lower()]


@dataclass(frozen=True)
class MpiOperator:
    """The MPI Operator with the settings of its own manifest, and those of `flags`."""

    name: str = "MPI Operator 0.7.0"
    flags: tuple[str, ...] = ()
    # When the launcher is made; the other way is to make it beside the workers, where it starts over until they answer.
    launcher: str = "AtStartup"
    account: str = "mpi-operator"
    namespace: str = "mpi-operator"
    jobs: str = "/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs"
    job_label: str = "training.kubeflow.org/job-name"
    chief: tuple[str, str] = ("training.kubeflow.org/job-role", "launcher")

    def manifest(self) -> Path:
        """Return the one that its release has."""
        return program("mpi-operator").with_name("mpi-operator.yaml")

    def command(self, kubeconfig: Path) -> list[object]:
        """Return the command of that manifest's pod."""
        own = [program("mpi-operator"), "-alsologtostderr", f"--lock-namespace={self.namespace}"]
        return [*own, f"--kubeConfig={kubeconfig}", *self.flags]

    def job(self, work: Work) -> dict[str, Any]:
        """Describe an `MPIJob` as its examples do: workers that wait for ssh, and a launcher without GPUs."""
        user = {"runAsUser": 1000}
        launch = ["mpirun", "-n", str(work.nodes * work.gpus), *work.command]
        serve = ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]
        launcher = {"name": "mpi-launcher", "image": work.image, "command": launch, "securityContext": user}
        worker = {
            "name": "mpi-worker",
            "image": work.image,
            "command": serve,
            "securityContext": user,
            "resources": {"limits": {"nvidia.com/gpu": work.gpus}},
        }
        return {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": work.name},
            "spec": {
                "slotsPerWorker": work.gpus,
                "runPolicy": {"cleanPodPolicy": "Running"},
                "sshAuthMountPath": "/home/mpiuser/.ssh",
                "launcherCreationPolicy": self.launcher,
                "mpiReplicaSpecs": {
                    "Launcher": {"replicas": 1, "template": {"spec": {"containers": [launcher]}}},
                    "Worker": {"replicas": work.nodes, "template": {"spec": {"containers": [worker]}}},
                },
            },
        }

    def trains(self, pods: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        """Return the workers."""
        return {name: states for name, states in pods.items() if re.search(r"-worker-\d+$", name)}

    def states(self, job: dict[str, Any]) -> list[str]:
        """Return the conditions that hold."""
        conditions = (job.get("status") or {}).get("conditions") or []
        return [one["type"].lower() for one in conditions if one["status"] == "True"]


def install(cluster: Cluster, manager: Manager) -> None:
    """Apply a manager's manifest, without its deployment, and return when its jobs can be submitted."""
    # Server-side: the operator's definition is too large for the annotation that the other way leaves.
    cluster.kubectl("apply", "--server-side", "--filename", manager.manifest())
    cluster.kubectl("delete", "deployments", "--all", f"--namespace={manager.namespace}")
    api = cluster.control_plane.api
    wait_for(f"jobs of {manager.name} to be known", lambda: api.request("GET", manager.jobs)[0] == 200)


@contextmanager
def running(cluster: Cluster, manager: Manager) -> Iterator[Process]:
    """Let a manager run while the block lasts."""
    token = cluster.kubectl(
        "create", "token", manager.account, f"--namespace={manager.namespace}", "--duration=24h"
    ).strip()
    plane = cluster.control_plane
    inside = f"{CONTROL_PLANE}:{API_PORT}"
    kubeconfig = plane.access.with_token(f"account-{manager.account}", token, inside, "default")
    process = cluster.network.start(manager.account, *manager.command(kubeconfig))
    try:
        yield process
    finally:
        process.end(signal.SIGTERM)


@dataclass(frozen=True)
class Used:
    """What a process has used until now."""

    processor_seconds: float
    peak_bytes: int

    @classmethod
    def by(cls, process: Process) -> Used:
        """Read it from the kernel."""
        status = Path(f"/proc/{process.pid}/status").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        # The name before the parenthesis may hold anything.
        fields = stat[stat.rindex(")") + 2 :].split()
        ticks = int(fields[11]) + int(fields[12])
        return cls(ticks / _TICKS, int(peak) * 1024)


_TICKS = int(subprocess.run(["getconf", "CLK_TCK"], capture_output=True, text=True, check=True).stdout)


def clear(cluster: Cluster, manager: Manager) -> None:
    """Delete all jobs, and wait until no pods are left."""
    cluster.kubectl("delete", "--all", "--wait=false", manager.jobs.rpartition("/")[2])
    wait_for("all pods to go", lambda: not cluster.get("/api/v1/namespaces/default/pods")["items"], 300)
