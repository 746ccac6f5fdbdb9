"""A registry that has one image, out of an archive that `docker save` wrote: `image_registry.py ARCHIVE PORT NAME TAG`.

Nothing else exists. It says `ready` when it can be asked. The image has one label more than the archive's, so it is
another one, which Docker has to ask for even where it has that.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"
BYTES = "application/octet-stream"
LABEL = "ronde.registry"


class Image:
    """What a registry says of an image."""

    def __init__(self, archive: str, name: str, tag: str) -> None:
        self._archive = archive
        with tarfile.open(archive) as whole:
            (saved,) = json.load(_opened(whole, "manifest.json"))
            config = json.load(_opened(whole, saved["Config"]))
            # They are not compressed, and so have the same number as in the image.
            layers = list(zip(config["rootfs"]["diff_ids"], saved["Layers"], strict=True))
            sizes = [_opened(whole, member).seek(0, io.SEEK_END) for _, member in layers]
        config["config"]["Labels"] = {LABEL: f"{name}:{tag}"}
        config = json.dumps(config).encode()
        described = [
            {"mediaType": LAYER, "size": size, "digest": digest}
            for (digest, _), size in zip(layers, sizes, strict=True)
        ]
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, "size": len(config), "digest": _digest(config)},
                "layers": described,
            }
        ).encode()
        manifests, blobs = f"/v2/{name}/manifests", f"/v2/{name}/blobs"
        # Bytes, or the file of the archive that has them.
        self._answers: dict[str, tuple[str, bytes | str]] = {
            "/v2/": ("application/json", b"{}"),
            f"{manifests}/{tag}": (MANIFEST, manifest),
            f"{manifests}/{_digest(manifest)}": (MANIFEST, manifest),
            f"{blobs}/{_digest(config)}": (BYTES, config),
            **{f"{blobs}/{digest}": (BYTES, member) for digest, member in layers},
        }
        self.digest = _digest(manifest)

    def answer(self, path: str) -> tuple[str, IO[bytes]] | None:
        """Return what is at a path, and of which type."""
        found = self._answers.get(path)
        if found is None:
            return None
        kind, what = found
        # Layers are asked for at the same time, so each has an archive of its own.
        return kind, io.BytesIO(what) if isinstance(what, bytes) else _opened(tarfile.open(self._archive), what)


def _opened(whole: tarfile.TarFile, name: str) -> IO[bytes]:
    file = whole.extractfile(name)
    assert file is not None, name
    return file


def _digest(contents: bytes) -> str:
    return f"sha256:{hashlib.sha256(contents).hexdigest()}"


class Questions(BaseHTTPRequestHandler):
    """Answers what Docker asks."""

    image: Image

    def do_GET(self) -> None:
        """Answer a question."""
        error = {"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}
        nothing = ("application/json", io.BytesIO(json.dumps({"errors": [error]}).encode()))
        found = self.image.answer(self.path)
        kind, contents = found or nothing
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(contents.seek(0, io.SEEK_END)))
        if kind == MANIFEST:
            self.send_header("Docker-Content-Digest", self.image.digest)
        self.end_headers()
        if self.command == "GET":
            contents.seek(0)
            shutil.copyfileobj(contents, self.wfile)

    def do_HEAD(self) -> None:
        """Answer a question without the contents."""
        self.do_GET()

    def log_message(self, *_words: object) -> None:
        """Say nothing else."""


if __name__ == "__main__":
    Questions.image = Image(sys.argv[1], *sys.argv[3:])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Questions)
    print("ready", flush=True)
    server.serve_forever()
