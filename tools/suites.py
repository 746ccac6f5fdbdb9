"""The test files in Python: in which environment each runs, what it needs, and which `make` target runs it.

Rust needs no such table, since Cargo knows its tests. Every test file of the repository is named here once, as part of
a suite or as that of a target of its own; tests/tools/test_suites.py checks it.

    for suite in SUITES:
        print(suite.name, suite.environments[0], *files(suite))
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Group(Enum):
    """Where a suite runs."""

    PLAIN = "make test"
    """It needs neither root nor Go, Docker, a cluster or a browser."""
    SYSTEM = "make test-system"
    """It needs at least one of them."""


@dataclass(frozen=True)
class Suite:
    """Test files that run in the same environment and need the same things."""

    name: str
    group: Group
    environments: tuple[str, ...]
    """Folders of target/env. All but the first, the newest, are only for `make test-frameworks`."""
    patterns: tuple[str, ...]
    """Globs, relative to the repository. Each matches at least one file."""
    reason: str
    """Why the suite needs what it needs, or why it needs nothing."""
    root: bool = False
    """Only root can run it."""
    alone: bool = False
    """No other test may run at the same time."""
    packages: tuple[str, ...] = ()
    """PROGRAM:PACKAGE, as tools/system-packages takes them."""
    setup: tuple[str, ...] = ()
    """Command lines for the root of the repository. They fill the cache, and take minutes on a new machine."""


OLDER_TENSORFLOW = tuple(f"tensorflow-{version}" for version in ("2.19", "2.18", "2.15", "2.13"))

HOST_PACKAGES = (
    "sshd:openssh-server",
    "ssh:openssh-client",
    "ip:iproute2",
    "unshare:util-linux",
    "tcsh:tcsh",
    "fish:fish",
)
# What tests/hosts/built.py would build during a test.
PROGRAMS = 'PYTHONPATH=tests/hosts python3 -c "import built; built.programs()"'
ANSIBLE = "tools/python-env ansible"
IMAGES = ("tests/images/prepare tools", "tests/images/prepare base")

SUITES = (
    Suite(
        name="python",
        group=Group.PLAIN,
        environments=("test",),
        patterns=("tests/python/test_*.py",),
        reason="test_foreign.py starts Open MPI's mpirun; all jobs run on this machine, each with a HOME of its own",
        packages=("mpirun:openmpi-bin",),
    ),
    Suite(
        name="bench",
        group=Group.PLAIN,
        environments=("test",),
        patterns=("bench/tests/test_*.py",),
        reason="only the parts of the benchmarks that decide something: no GPU, host or cluster is used",
    ),
    Suite(
        name="tools",
        group=Group.PLAIN,
        environments=("test",),
        patterns=("tests/tools/test_*.py",),
        reason="starts only small programs that the tests write",
    ),
    Suite(
        name="cluster-command",
        group=Group.PLAIN,
        environments=("test",),
        patterns=(
            "tests/openstack/test_await_machine.py",
            "tests/openstack/test_command.py",
            "tests/openstack/test_inventory.py",
            "tests/openstack/test_leftovers.py",
            "tests/openstack/test_playbooks.py",
        ),
        reason="Terraform, Docker, ssh and the cloud are fakes; test_command.py has a real ssh-agent; "
        "test_playbooks.py runs Ansible on this machine as the user, and the disk that gets a file system is a file",
        packages=("ssh-agent:openssh-client", "openssl:openssl", "mkfs.ext4:e2fsprogs"),
        setup=(ANSIBLE,),
    ),
    Suite(
        name="torch",
        group=Group.PLAIN,
        environments=("torch-newest", "torch-oldest"),
        patterns=("tests/torch/test_*.py", "tests/examples/test_torch_*.py"),
        reason="everything is in the environment",
    ),
    Suite(
        name="tensorflow",
        group=Group.PLAIN,
        environments=("tensorflow-newest", *OLDER_TENSORFLOW),
        patterns=("tests/tensorflow/test_*.py", "tests/examples/test_tensorflow_*.py"),
        reason="everything is in the environment",
    ),
    Suite(
        name="keras",
        group=Group.PLAIN,
        environments=("tensorflow-newest", *OLDER_TENSORFLOW, "keras-torch", "keras-jax"),
        patterns=("tests/keras/test_*.py",),
        reason="everything is in the environment",
    ),
    Suite(
        name="jax",
        group=Group.PLAIN,
        environments=("jax-newest",),
        patterns=("tests/jax/test_*.py",),
        reason="everything is in the environment",
    ),
    Suite(
        name="mxnet",
        group=Group.PLAIN,
        environments=("mxnet",),
        patterns=("tests/mxnet/test_*.py",),
        reason="everything is in the environment",
    ),
    Suite(
        name="hosts",
        group=Group.SYSTEM,
        environments=("test",),
        patterns=("tests/hosts/test_*.py",),
        reason="hosts are network namespaces, which need root; test_jobs.py builds our programs with Cargo, and "
        "test_hosts.py measures the speed of links",
        root=True,
        alone=True,
        packages=HOST_PACKAGES,
        setup=(PROGRAMS,),
    ),
    Suite(
        name="launch",
        group=Group.SYSTEM,
        environments=("test",),
        patterns=("tests/launch/test_*.py",),
        reason="hosts need root; test_places.py builds our programs with Cargo; leftovers are looked for on the hosts "
        "of the test only, but they must be gone within seconds, so other tests would disturb these",
        root=True,
        alone=True,
        packages=HOST_PACKAGES,
        setup=(PROGRAMS,),
    ),
    Suite(
        name="kubernetes",
        group=Group.SYSTEM,
        environments=("test",),
        patterns=("tests/kubernetes/test_training.py",),
        reason="nodes are namespaces, which need root; Kubernetes is built with Go, and the images with Docker",
        root=True,
        setup=(
            "tools/system-packages $(PYTHONPATH=tests/kubernetes python3 -m testbed packages)",
            "tools/kubernetes cluster",
            "tools/kubernetes programs",
            *IMAGES,
        ),
    ),
    Suite(
        name="terraform",
        group=Group.SYSTEM,
        environments=("test",),
        patterns=(
            "tests/openstack/test_terraform.py",
            "tests/openstack/test_terraform_refusals.py",
            "tests/openstack/test_real_terraform.py",
        ),
        reason="the OpenStack provider is built with Go, and so is OpenTofu where there is no Terraform; needs no root",
        setup=("tools/openstack provider", "type -P terraform tofu || tools/openstack tofu"),
    ),
    Suite(
        name="cluster-local",
        group=Group.SYSTEM,
        environments=("test",),
        patterns=("tests/openstack/test_local.py",),
        reason="containers under a Docker daemon in a network namespace, which needs root",
        root=True,
        setup=(ANSIBLE, *IMAGES),
    ),
)

OWN_TARGETS = {
    "tests/gpu/test_*.py": "test-gpu",
    "tests/images/test_*.py": "test-images",
    "tests/jupyter/test_*.py": "test-jupyter",
    "tests/kubernetes/test_*.py": "test-kubernetes",
    "tests/openstack/test_cloud.py": "test-openstack",
    "tests/openstack/test_guests.py": "test-openstack",
    "tests/openstack/test_interrupted.py": "test-openstack",
    "tests/slurm/test_*.py": "test-slurm",
}
"""Files that no suite has, by pattern, and the target that runs them; test-kubernetes also runs the suite's file."""


def files(suite: Suite, root: Path = ROOT) -> tuple[Path, ...]:
    """Return the test files of a suite, sorted; a pattern that matches nothing is an error."""
    found: set[Path] = set()
    for pattern in suite.patterns:
        matches = set(root.glob(pattern))
        if not matches:
            raise ValueError(f"suite {suite.name}: no file matches {pattern}")
        found |= matches
    return tuple(sorted(found))
