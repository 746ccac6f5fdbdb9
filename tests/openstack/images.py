"""The image of clusters in tests: built by the role `image` itself, small, on a base that stands in for Debian's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from building import Builder, shared_builder
from daemon import environment
from playbooks import ROOT, play

HERE = Path(__file__).resolve().parent


@contextlib.contextmanager
def archived(folder: Path, secrets: Path) -> Iterator[Path]:
    """Give the image as an archive in a folder, for as long as it is needed: it is large."""
    archive = folder / "image.tar"
    try:
        with shared_builder(secrets) as builder:
            _build(builder, archive)
        yield archive
    finally:
        archive.unlink(missing_ok=True)


def _build(builder: Builder, archive: Path) -> None:
    """Build the image without a framework, which `digits.py` does not need, and write it to an archive."""
    inventory = archive.with_suffix(".yaml")
    inventory.write_text("master: {hosts: {builder: {ansible_connection: local}}}\n")
    play(
        HERE / "build_image.yml",
        inventory=inventory,
        env={**environment(), "DOCKER_HOST": f"unix://{builder.daemon.folder}/socket"},
        ansible_python_interpreter="{{ ansible_playbook_python }}",
        framework="none",
        image_context=str(ROOT),
        image_archive=str(archive),
        image_build_options=["--network=host", f"--build-arg=BASE={builder.base}", *builder.secrets],
    ).assert_well()
