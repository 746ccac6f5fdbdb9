"""What the launcher's tests share: hosts, made once a module, and the check that nothing is left on them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import built
from launcher import BIN
from quiet import Quiet
from sshd import SshHosts

MOST_HOSTS = 8


def pytest_configure() -> None:
    """Refuse to start without the installed launcher, so that nothing else is tested by mistake."""
    if shutil.which("ronde", path=str(BIN)) is None:
        raise pytest.UsageError("tests/launch need the installed wheel: run `make test` or `make test-launch`")


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    """Give eight hosts on one network, each with an ssh server."""
    with SshHosts(MOST_HOSTS) as made:
        yield made


@pytest.fixture
def quiet(hosts: SshHosts) -> Iterator[Quiet]:
    """Take down what is on the hosts before the test; it must be all there is a moment after it."""
    before = Quiet(hosts)
    yield before
    before.await_again()


@pytest.fixture(scope="session")
def probe() -> Path:
    """Build the rank that says over which link it reaches every other."""
    return built.programs() / "ronde-probe"
