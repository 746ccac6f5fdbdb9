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
    """Where a suite runs. The programs that it needs are those that tools/packages.txt lists for this part."""

    PLAIN = "plain"
    """`make test`: it needs neither root nor Go, Docker, a cluster or a browser."""
    SYSTEM = "system"
    """`make test-system`: it needs at least one of them."""


@dataclass(frozen=True)
class SetUp:
    """A command line for the root of the repository that takes minutes on a new machine, and seconds later."""

    name: str
    command: str


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
    setup: tuple[SetUp, ...] = ()


OLDER_TENSORFLOW = tuple(f"tensorflow-{version}" for version in ("2.19", "2.18", "2.15", "2.13"))

ANSIBLE = SetUp("packages ansible", "tools/python-env ansible")
DOCKER = SetUp("unpack docker", "tests/images/prepare tools")
BASE_IMAGE = SetUp("build base image", "tests/images/prepare base")
KUBERNETES = SetUp("build kubernetes", "tools/kubernetes cluster")
KUBERNETES_PROGRAMS = SetUp("build programs of nodes", "tools/kubernetes programs")
OPENSTACK_PROVIDER = SetUp("build openstack provider", "tools/openstack provider")
OPENTOFU = SetUp("build opentofu", "type -P terraform tofu || tools/openstack tofu")
# What tests/hosts/built.py would otherwise build during a test.
HOST_PROGRAMS = SetUp("build programs of hosts", 'PYTHONPATH=tests/hosts "$PYTHON" -c "import built; built.programs()"')

# What takes longest comes first, so that little runs alone in the end.
SUITES = (
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
        name="python",
        group=Group.PLAIN,
        environments=("test",),
        patterns=("tests/python/test_*.py",),
        reason="test_foreign.py starts Open MPI's mpirun; all jobs run on this machine, each with a HOME of its own",
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
        setup=(ANSIBLE,),
    ),
    Suite(
        name="setup",
        group=Group.PLAIN,
        environments=("test",),
        patterns=("tests/setup/test_*.py",),
        reason="tools are missing because they are left out of the PATH; root becomes another user where that matters",
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
        setup=(HOST_PROGRAMS,),
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
        setup=(HOST_PROGRAMS,),
    ),
    Suite(
        name="kubernetes",
        group=Group.SYSTEM,
        environments=("test",),
        patterns=("tests/kubernetes/test_training.py",),
        reason="nodes are namespaces, which need root; Kubernetes is built with Go, and the images with Docker",
        root=True,
        setup=(KUBERNETES, KUBERNETES_PROGRAMS, DOCKER, BASE_IMAGE),
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
        setup=(OPENSTACK_PROVIDER, OPENTOFU),
    ),
    Suite(
        name="cluster-local",
        group=Group.SYSTEM,
        environments=("test",),
        patterns=("tests/openstack/test_local.py",),
        reason="containers under a Docker daemon in a network namespace, which needs root",
        root=True,
        setup=(ANSIBLE, DOCKER, BASE_IMAGE),
    ),
    Suite(
        name="jupyter",
        group=Group.SYSTEM,
        environments=("jupyter",),
        patterns=("tests/jupyter/test_*.py",),
        reason="the pages of JupyterLab are looked at with Chromium",
    ),
)

OWN_TARGETS = {
    "tests/gpu/test_*.py": "test-gpu",
    "tests/images/test_*.py": "test-images",
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
