"""What several files here start from: `ronde cluster` with fakes, and a cluster that can be planned in a fake cloud.

Files with a real cloud or real machines have a `command`, `cloud` or `cluster` of their own. The summary says which
program the tests of the Terraform module ran with.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command import KNOWN, WHEEL, Command
from fake_cloud import KEY, PASSWORD, USER, FakeCloud
from terraform import Cluster, program, version


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Return a cluster folder that `init` has written; Ansible is there, but never run."""
    (tmp_path / WHEEL).write_bytes(b"a wheel")
    made = Command(tmp_path / "cluster")
    made.fake("ansible-playbook", "exit 99")
    done = made.run("init", str(made.folder), "--wheel", WHEEL, *KNOWN)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Make a folder that is initialised once, for all others to be copies of."""
    return Cluster(tmp_path_factory.mktemp("template"), {})


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


@pytest.fixture
def cluster(template: Cluster, tmp_path: Path, cloud: FakeCloud) -> Cluster:
    """Return a cluster that can be planned."""
    provider = {
        "auth_url": cloud.address,
        "project_name": "research",
        "region": "RegionOne",
        "user_domain_name": "Default",
    }
    variables = {
        "auth_data": {"user_name": USER, "password": PASSWORD},
        "openstack_provider": provider,
        "horovod_master_node": {"flavor_name": "small", "image_name": "debian-12", "public_key": KEY},
        "horovod_worker_node": {"count": 2},
        "admin_cidr": "203.0.113.7/32",
    }
    return Cluster(tmp_path / "cluster", variables, template.folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if any("/test_terraform" in report.nodeid for report in terminalreporter.getreports("passed")):
        terminalreporter.write_line(f"the Terraform module was tested with {program()}, {version()}")
