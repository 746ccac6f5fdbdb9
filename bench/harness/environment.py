"""What a benchmark needs before it can start: peers, and our own binaries.

The peers' Python (numpy and torch for the CPU) is made once for each set of pins
in the user's cache, under a temporary name that is renamed when it works, so that
an interrupted set-up is never taken for a finished one. Our own side is built from
this tree unless the caller names files.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent

PINS = {
    "torch": "2.15.0",
    "numpy": "2.4.6",
    "filelock": "4.2.10",
    "typing-extensions": "4.16.0",
    "sympy": "1.14.0",
    "mpmath": "1.4.1",
    "networkx": "3.6.1",
    "jinja2": "3.1.6",
    "MarkupSafe": "3.0.4",
    "fsspec": "2026.9.0",
}
OPENMPI_PACKAGES = ["openmpi-bin", "libopenmpi-dev"]


class SetupError(Exception):
    """Something the benchmark needs is not there; the message says what to do."""


@dataclass(frozen=True)
class OurBinaries:
    """Our side of the comparison: the launcher's binary, the probe, and where `import ronde` finds the package."""

    ronde: Path
    probe: Path
    package: Path | None


def say(message: str) -> None:
    """Tell the person at the terminal what goes on, apart from the report on standard output."""
    print(message, file=sys.stderr, flush=True)


def cache_dir() -> Path:
    """Return the user's cache folder for everything that Ronde's tools download or build."""
    named = os.environ.get("RONDE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ronde"


def peer_python() -> Path:
    """Return the interpreter with numpy and torch, made on first use (0.5 GB to download)."""
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    recipe = repr((tag, sorted(PINS.items()), (BENCH / "stub_cuda.py").read_text()))
    home = cache_dir() / f"bench-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    python = home / "bin" / "python"
    if python.exists():
        return python
    say(f"making the peers' environment in {home} (numpy and torch, about 0.5 GB to download)")
    home.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    try:
        _run([sys.executable, "-m", "venv", scratch])
        installer = [scratch / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*installer, "--no-deps", *(f"{name}=={version}" for name, version in PINS.items())])
        site = scratch / "lib" / f"python{tag}" / "site-packages"
        _run([sys.executable, BENCH / "stub_cuda.py", site / "torch"])
        _run([scratch / "bin" / "python", "-c", "import numpy, torch.distributed; torch.zeros(2).sum()"])
        _move_into_place(scratch, home)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return python


@functools.cache
def openmpi_program() -> Path:
    """Return the compiled Open MPI peer; install Debian's Open MPI when it is missing and we are root."""
    if not shutil.which("mpicc"):
        install = ["apt-get", "install", "-y", *OPENMPI_PACKAGES]
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise SetupError(f"Open MPI is a peer of this benchmark and mpicc is not there: {' '.join(install)}")
        say("installing Open MPI: " + " ".join(install))
        _run(install)
    return _compile_openmpi()


def openmpi_program_if_there() -> Path | None:
    """Return the compiled Open MPI peer, or nothing on a machine without Open MPI."""
    return _compile_openmpi() if shutil.which("mpicc") and shutil.which("mpirun") else None


def _compile_openmpi() -> Path:
    source = BENCH / "peers" / "openmpi.c"
    version = subprocess.run(["mpicc", "--showme:version"], capture_output=True, text=True, check=False).stdout
    key = hashlib.sha256((source.read_text() + version).encode()).hexdigest()[:12]
    program = cache_dir() / f"bench-openmpi-{key}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        scratch = program.with_name(f"{program.name}.{os.getpid()}")
        _run(["mpicc", "-O3", "-std=gnu11", "-Wall", "-o", scratch, source])
        scratch.rename(program)
    return program


def our_binaries(ronde: Path | None, probe: Path | None, wheel: Path | None, need_package: bool) -> OurBinaries:
    """Return our binaries as named by the caller, or else built from this tree."""
    if ronde is None or probe is None:
        say("building ronde and ronde-probe (release)")
        _run(["cargo", "build", "--release", "--locked", "-p", "ronde-probe", "-p", "ronde-cli"], cwd=ROOT)
        built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "release"
        ronde, probe = ronde or built / "ronde", probe or built / "ronde-probe"
    for program in (ronde, probe):
        if not os.access(program, os.X_OK):
            raise SetupError(f"{program} is not a program that can be run")
    package = _unpacked_wheel(wheel) if need_package else None
    return OurBinaries(ronde.resolve(), probe.resolve(), package)


def _unpacked_wheel(wheel: Path | None) -> Path:
    """Unpack the Python package from the wheel, ready for PYTHONPATH, so that nothing is installed anywhere."""
    if wheel is None:
        say("building the wheel: make wheel")
        _run(["make", "--no-print-directory", "wheel"], cwd=ROOT)
        built = sorted((ROOT / "dist").glob("ronde-*.whl"), key=lambda path: path.stat().st_mtime)
        if not built:
            raise SetupError("make wheel left no dist/ronde-*.whl")
        wheel = built[-1]
    if not wheel.is_file():
        raise SetupError(f"there is no wheel {wheel}")
    target = cache_dir() / f"bench-wheel-{hashlib.sha256(wheel.read_bytes()).hexdigest()[:12]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch)
            _move_into_place(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _move_into_place(scratch: Path, target: Path) -> None:
    try:
        scratch.rename(target)
    except OSError:
        # Somebody else finished the same work first; theirs is as good.
        if not target.exists():
            raise


def _run(command: list[object], cwd: Path | None = None) -> None:
    words = [str(part) for part in command]
    try:
        # What tools say while they work is not part of the report.
        subprocess.run(words, check=True, cwd=cwd, stdout=sys.stderr)
    except FileNotFoundError:
        raise SetupError(f"{words[0]} is not installed; it was needed for: {' '.join(words)}") from None
    except subprocess.CalledProcessError as error:
        raise SetupError(f"failed with status {error.returncode}: {' '.join(words)}") from None
