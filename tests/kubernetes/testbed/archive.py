"""Image archives without a registry or a daemon: a folder becomes an image of one layer, as `docker save` writes it."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pack(folder: Path, name: str, archive: Path, command: Sequence[str] = ()) -> None:
    """Write the folder as an image called `name` that runs `command`. The same folder makes the same bytes."""
    with tempfile.TemporaryFile() as layer:
        _write_layer(folder, layer)
        digest = _digest(layer)
        config = {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Cmd": list(command) or None, "Env": [PATH]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "packed from a folder"}],
        }
        config_text = json.dumps(config).encode()
        config_file = f"{hashlib.sha256(config_text).hexdigest()}.json"
        manifest = [{"Config": config_file, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
        with tarfile.open(archive, "w") as written:
            _add(written, config_file, io.BytesIO(config_text))
            _add(written, f"{digest}/layer.tar", layer)
            _add(written, "manifest.json", io.BytesIO(json.dumps(manifest).encode()))


def _write_layer(folder: Path, layer: IO[bytes]) -> None:
    with tarfile.open(fileobj=layer, mode="w") as written:
        for path in sorted(folder.rglob("*")):
            entry = written.gettarinfo(path, str(path.relative_to(folder)))
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            if entry.isreg():
                with path.open("rb") as content:
                    written.addfile(entry, content)
            else:
                written.addfile(entry)


def _digest(layer: IO[bytes]) -> str:
    layer.seek(0)
    digest = hashlib.sha256()
    while block := layer.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _add(written: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = content.seek(0, io.SEEK_END)
    content.seek(0)
    written.addfile(entry, content)
