"""Builds the images of deploy/images on a base that stands in for those that would be pulled.

The daemon that builds stays on this machine's network, because only there packages can be had, and keeps its layers in
the per-user cache: a second run builds only what has changed.

Where packages come from is this machine's affair: builds are told as secrets, which no image keeps.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from daemon import Daemon, prepared

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "deploy" / "images"

# What pip may be told about where packages are; certificates are a secret of their own.
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy")


class Builder:
    """Builds images of deploy/images on a base that stands in for the ones that would be pulled."""

    def __init__(self, daemon: Daemon, secrets: Path) -> None:
        self.daemon = daemon
        self.secrets = _secrets(secrets)
        tar = prepared("base")
        # The folder's name holds a hash of what it was made from, so another base has another name.
        self.base = f"bare:{tar.parent.name}"
        if daemon.result("image", "inspect", self.base).returncode != 0:
            daemon.docker("import", tar, self.base)

    def build(self, dockerfile: str, tag: str, **arguments: str) -> str:
        """Build a Dockerfile with the wheel in dist/ and return the image's name."""
        words = ["build", "--network=host", "--quiet", "--file", IMAGES / f"{dockerfile}.Dockerfile", "--tag", tag]
        for name, value in {"BASE": self.base, **arguments}.items():
            words += ["--build-arg", f"{name}={value}"]
        self.daemon.docker(*words, *self.secrets, ROOT)
        return tag


@contextlib.contextmanager
def shared_builder(secrets: Path) -> Iterator[Builder]:
    """Start the builder whose layers lie in the cache. One at a time: a second run waits for the first."""
    # The base lies in the cache itself, which has no other name here.
    folder = prepared("base").parents[1] / "image-builder"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Daemon(folder, builder=True) as daemon:
            yield Builder(daemon, secrets)
            daemon.docker("image", "prune", "--force")
            daemon.docker("builder", "prune", "--force", "--keep-storage=6GB")


def _secrets(folder: Path) -> list[str]:
    """Say to builds how pip on this machine reaches packages."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=True
    )
    settings = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = value.strip("'")
    config = folder / "pip.conf"
    known = [f"{name} = {settings[name]}\n" for name in PIP_SETTINGS if name in settings]
    config.write_text("".join(["[global]\n", *known]))
    words = ["--secret", f"id=pip,src={config}"]
    certificates = settings.get("cert")
    if certificates is not None and Path(certificates).exists():
        words += ["--secret", f"id=ca,src={certificates}"]
    return words
