"""The images of deploy/images as an archive that nodes can load: what users would push to a registry.

Built by the same daemon as for tests/images, whose layers are cached; the archive is kept beside them, under what the
images are called by their contents, and written anew only when these change.

The manager's image has two names: a short one for tests, and the one that the manifests of deploy/kubernetes say, so
that these can be used as they are.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path

from building import ROOT, Builder, shared_builder

MANIFESTS = ROOT / "deploy" / "kubernetes"

# Trains examples/digits.py on processors: Python, NumPy, scikit-learn, the wheel and the examples.
TRAINING_IMAGE = "ronde:cpu"
# The programs and the Python package, and nothing to run the latter with.
MANAGER_IMAGE = "ronde:manager"
# The first with Debian's Open MPI.
MPI_IMAGE = "ronde:mpi"


def released_image() -> str:
    """Return what the manifests call the manager's image."""
    names = {name for file in MANIFESTS.glob("*.yaml") for name in re.findall(r' image: "(.+)"', file.read_text())}
    (name,) = names
    return name


def deployed_images() -> Path:
    """Build both images with the wheel in dist/, and return the archive that holds them."""
    with tempfile.TemporaryDirectory() as secrets, shared_builder(Path(secrets)) as builder:
        images = [*_both(builder), released_image()]
        builder.daemon.docker("tag", MANAGER_IMAGE, released_image())
        return _archive(builder, "deployed", images)


def mpi_images() -> Path:
    """Build the manager's image and the one with Open MPI, and return the archive that holds them."""
    with tempfile.TemporaryDirectory() as secrets, shared_builder(Path(secrets)) as builder:
        training, manager = _both(builder)
        folder = Path(__file__).parent
        words = ["--network=host", "--quiet", "--file", folder / "mpi.Dockerfile", "--tag", MPI_IMAGE]
        builder.daemon.docker("build", *words, "--build-arg", f"BASE={training}", folder)
        return _archive(builder, "mpi", [MPI_IMAGE, manager])


def _both(builder: Builder) -> tuple[str, str]:
    """Build the images of deploy/images that the cluster needs, to train in and to manage with."""
    training = builder.build("cpu", TRAINING_IMAGE, FRAMEWORK="none")
    return training, builder.build("manager", MANAGER_IMAGE, RUNTIME=builder.base)


def _archive(builder: Builder, kind: str, images: list[str]) -> Path:
    """Write images to an archive, unless the last one of this kind holds them."""
    contents = builder.daemon.docker("image", "inspect", "--format", "{{.Id}} {{.RepoTags}}", *images)
    archive = builder.daemon.folder / f"{kind}-{hashlib.sha256(contents.encode()).hexdigest()[:12]}.tar"
    if not archive.exists():
        for older in builder.daemon.folder.glob(f"{kind}-*"):
            older.unlink()
        written = archive.with_suffix(".new")
        builder.daemon.docker("save", "--output", written, *images)
        written.rename(archive)
    return archive


if __name__ == "__main__":
    print(deployed_images())
