"""A package index as PyTorch has one for its builds without CUDA, which cannot be reached from every machine.

The PyTorch in it is the one of the tests' environment (tools/python-env torch-newest), packed as a wheel again; it
stands in for a build without CUDA in that it neither needs nor names CUDA's packages. What it depends on comes from
the usual index. Pip reads a plain listing of folders as an index, so a plain file server is one.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.metadata
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

from building import ROOT

CUDA = ("cuda-", "nvidia-", "triton")


@contextlib.contextmanager
def served() -> Iterator[tuple[str, str]]:
    """Make the index and serve it on loopback; give its address and the version of PyTorch."""
    # More than a gigabyte: not a folder that pytest would keep.
    with tempfile.TemporaryDirectory(prefix="ronde-images-") as folder:
        version = _fill(Path(folder))
        handler = functools.partial(_Quiet, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/", version
            finally:
                server.shutdown()
                thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def _fill(folder: Path) -> str:
    made = subprocess.run([ROOT / "tools/python-env", "torch-newest"], check=True, stdout=subprocess.PIPE, text=True)
    [site] = Path(made.stdout.strip()).glob("lib/python*/site-packages")
    [torch] = importlib.metadata.distributions(name="torch", path=[str(site)])
    needs = [need for need in torch.requires or [] if not need.startswith(CUDA)]
    wheels = folder / "wheels"
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
        str(wheels),
    ]
    subprocess.run([*download, *(need for need in needs if "extra ==" not in need)], check=True)
    _pack(site, torch, needs, wheels)
    for wheel in list(wheels.iterdir()):
        project = folder / wheel.name.split("-")[0].replace("_", "-").lower()
        project.mkdir(exist_ok=True)
        wheel.rename(project / wheel.name)
    wheels.rmdir()
    return torch.version


def _pack(site: Path, torch: importlib.metadata.Distribution, needs: list[str], wheels: Path) -> None:
    """Pack an installed PyTorch, with the libraries that stand in for CUDA's, as a wheel again."""
    tag = torch.read_text("WHEEL").partition("Tag: ")[2].split()[0]
    information = f"torch-{torch.version}.dist-info"
    metadata = torch.read_text("METADATA").splitlines(keepends=True)
    kept = [line for line in metadata if not line.startswith("Requires-Dist:") or line[15:].strip() in needs]
    with zipfile.ZipFile(wheels / f"torch-{torch.version}-{tag}.whl", "w") as wheel:
        for part in ("torch", "torchgen", "functorch", information):
            for path in (site / part).rglob("*"):
                name = str(path.relative_to(site))
                if path.is_file() and not name.endswith((".pyc", f"{information}/METADATA")):
                    wheel.write(path, name)
        wheel.writestr(f"{information}/METADATA", "".join(kept))
