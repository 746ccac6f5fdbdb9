"""Packs what the containers' image is built from, or says in one number what that is.

pack.py CONTEXT [--output FILE]: prints a hash of the Dockerfiles, the examples and the newest wheel in CONTEXT, and
with FILE writes them there as a tar archive. The same files give the same hash and archive on every machine.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tarfile
from pathlib import Path


def chosen(context: Path) -> list[Path]:
    """Return the files of the context that builds of the image read, in a fixed order."""
    wheels = sorted(context.glob("dist/ronde-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not wheels:
        sys.exit(
            f"{context / 'dist'} has no wheel of ronde: run `make wheel`, or let `ronde cluster init` make the folder"
        )
    if not (context / "deploy/images/cpu.Dockerfile").exists():
        sys.exit(
            f"{context} has no deploy/images: image_context has to name a folder with deploy/images, examples and dist"
        )
    images = (path for path in context.glob("deploy/images/**/*") if path.is_file())
    examples = (path for path in context.glob("examples/*") if path.suffix in (".py", ".ipynb"))
    return sorted([*images, *examples, wheels[-1]])


def pack(context: Path) -> bytes:
    """Return the archive. Owners and times are left out: they are this machine's."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in chosen(context):
            entry = tarfile.TarInfo(str(path.relative_to(context)))
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    return archive.getvalue()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("context", type=Path)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    archive = pack(arguments.context)
    if arguments.output is not None:
        arguments.output.write_bytes(archive)
    print(hashlib.sha256(archive).hexdigest())


main()
