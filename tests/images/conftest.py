"""What the tests of the images share: the images, built once, and two machines with Docker, joined by a cable.

Images are built once (building.py) and then loaded into two machines that reach nothing but each other. Both have
Docker's usual bridge, 172.17.0.0/16, as two real ones would.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from building import Builder, shared_builder
from daemon import Daemon, connect


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    with shared_builder(tmp_path_factory.mktemp("secrets")) as builder:
        yield builder


@pytest.fixture(scope="session")
def image(builder: Builder) -> str:
    return builder.build("cpu", "ronde:cpu", FRAMEWORK="none")


@pytest.fixture(scope="session")
def manager(builder: Builder) -> str:
    return builder.build("manager", "ronde:manager", RUNTIME=builder.base)


@pytest.fixture(scope="session")
def machines(
    builder: Builder, image: str, manager: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Daemon, Daemon]]:
    folder = tmp_path_factory.mktemp("machines")
    archive = folder / "images.tar"
    builder.daemon.docker("save", "--output", archive, image, manager)
    with Daemon(folder / "left") as left, Daemon(folder / "right") as right:
        connect(left, right)
        for machine in (left, right):
            machine.docker("load", "--input", archive)
        archive.unlink()
        yield left, right


@pytest.fixture(scope="session")
def machine(machines: tuple[Daemon, Daemon]) -> Daemon:
    return machines[0]


@pytest.fixture
def ssh_folder(tmp_path: Path) -> Path:
    """Make what users keep on a share and mount as /root/.ssh: a key that may log in where its public half is."""
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    key = folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", key], check=True)
    (folder / "authorized_keys").write_bytes(key.with_suffix(".pub").read_bytes())
    (folder / "authorized_keys").chmod(0o600)
    return folder
