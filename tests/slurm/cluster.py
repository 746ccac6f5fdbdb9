"""A Slurm cluster that is gone after the test: the real daemons, on hosts made of namespaces.

The first host has the controller; all of them run jobs. Configuration and keys are made anew in a folder that the hosts
see, state and sockets are in each host's own `/run`. The daemons stay in the foreground as children of this process and
die with it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hosts import Hosts, HostsError
from waiting import eventually

TOOLS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}

CONFIGURATION = """
ClusterName=test
SlurmctldHost=h1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge.socket
CredType=cred/munge
StateSaveLocation=/run/slurm
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
# As many cores as a test asks for, however many the machine has.
SlurmdParameters=config_overrides
NodeName={nodes} CPUs=4 RealMemory=500 State=UNKNOWN
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Slurm on some hosts, as a context manager; `folder` is one that the hosts see."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
        if missing:
            raise HostsError(f"Slurm is not installed: apt-get install {' '.join(missing)}")
        self.hosts = hosts
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Slurm:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o400)
        nodes = ",".join(self.hosts.name(host) for host in self.hosts.numbers())
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(nodes=nodes))
        # Nothing is bound by control groups here; without this Slurm looks for them and gives up.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", "--socket=/run/munge.socket"]
        munged += ["--pid-file=/run/munged.pid", "--log-file=/run/munged.log", "--seed-file=/run/munged.seed"]
        try:
            for host in self.hosts.numbers():
                self._start(host, munged)
                self.hosts.run(host, ["mkdir", "-p", "/run/slurm", "/run/slurmd"])
            self._start(1, ["slurmctld", "-D"])
            for host in self.hosts.numbers():
                self._start(host, ["slurmd", "-D"])
            self._await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _start(self, host: int, command: Sequence[str]) -> None:
        log = (self.folder / f"{command[0]}-{host}.log").open("wb")
        with log:
            self._daemons.append(
                self.hosts.popen(
                    host, command, self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
            )

    def _await_ready(self) -> None:
        def states() -> list[str]:
            return self.command(["sinfo", "--noheader", "--format=%D %T"]).stdout.split()

        def complaint() -> str:
            logs = "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))
            return f"Slurm to come up, its nodes are {states()}:\n{logs}"

        eventually(lambda: states() == [str(self.hosts.count), "idle"], complaint)

    def command(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands on the first host to its end, whatever its status."""
        words = [*self.hosts.enter(1), *words]
        environment = {**os.environ, **self.environment, **(env or {})}
        return subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def close(self) -> None:
        """End the daemons."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
