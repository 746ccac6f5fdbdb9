"""Addresses and programs of a cluster. Each has a network of its own, so all of them use the same addresses."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from .errors import ClusterError

ROOT = Path(__file__).resolve().parents[3]

# The control plane's machine: the API server, and the DNS server behind its service.
CONTROL_PLANE = "10.90.0.1"
API_PORT = 6443
FAULTS_PORT = 6444
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
DOMAIN = "cluster.local"
MOST_NODES = 200

# The small programs of binaries/, which are built apart from the rest.
OWN_PROGRAMS = ("door", "faults", "gpus", "pause")


def node_address(number: int) -> str:
    """Return a node's address on the network of nodes."""
    return f"10.90.0.{number + 10}"


def pod_network(number: int) -> str:
    """Return the network of the pods on a node."""
    return f"10.244.{number}.0/24"


def cache() -> Path:
    """Return the per-user cache, where tools/cache.sh has it."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("RONDE_CACHE") or Path(home, "ronde"))


@functools.cache
def program(name: str) -> Path:
    """Return where a program that `tools/kubernetes` builds is; it does so now if it has not yet."""
    own = {name: name for name in ("helm", "kwok", "mpi-operator")} | dict.fromkeys(OWN_PROGRAMS, "programs")
    return _built(own.get(name, "cluster")) / name


@functools.cache
def _built(part: str) -> Path:
    done = subprocess.run([ROOT / "tools" / "kubernetes", part], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError("the programs of the test cluster could not be built; see above")
    return Path(done.stdout.strip())


def require_system() -> None:
    """Raise if this is not root or a program is missing."""
    if os.geteuid() != 0:
        raise ClusterError(
            "a test cluster is made of namespaces and cgroups, which only root can make: run this as root"
        )
    listed = (line.split() for line in (ROOT / "tools" / "packages.txt").read_text().splitlines())
    needed = {program: package for program, package, *parts in listed if "kubernetes" in parts}
    missing = sorted({package for program, package in needed.items() if not shutil.which(program)})
    if missing:
        raise ClusterError(
            f"the test cluster needs programs that are not installed: apt-get install {' '.join(missing)}"
        )
