"""The images that real nodes need: the one that trains, the same for both managers, and the one of our own manager."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from harness.environment import BENCH, ROOT

sys.path.insert(0, str(ROOT / "tests" / "images"))
from building import Builder, shared_builder

TRAINING = "ronde.bench/first:1"
MANAGER = "ronde.bench/manager:1"


def images() -> Path:
    """Build both with the wheel in dist/ and Debian's Open MPI, and return the archive that holds them."""
    with tempfile.TemporaryDirectory() as secrets, shared_builder(Path(secrets)) as builder:
        names = [builder.build("manager", MANAGER, RUNTIME=builder.base), _first(builder)]
        contents = builder.daemon.docker("image", "inspect", "--format", "{{.Id}}", *names)
        archive = builder.daemon.folder / f"bench-{hashlib.sha256(contents.encode()).hexdigest()[:12]}.tar"
        if not archive.exists():
            for older in builder.daemon.folder.glob("bench-*"):
                older.unlink()
            written = archive.with_suffix(".new")
            builder.daemon.docker("save", "--output", written, *names)
            written.rename(archive)
    return archive


def _first(builder: Builder) -> str:
    words = ["build", "--network=host", "--quiet", "--file", BENCH / "kube" / "image.Dockerfile", "--tag", TRAINING]
    builder.daemon.docker(*words, "--build-arg", f"BASE={builder.base}", "--build-arg", f"MANAGER={MANAGER}", BENCH)
    return TRAINING
