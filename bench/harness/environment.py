"""What a benchmark needs before it can start: peers, and our own binaries.

The peers' Python (numpy and torch for the CPU, or TensorFlow) is the environment that the tests
with the newest PyTorch or TensorFlow have too (tools/python-env). Upstream Horovod is compiled once, for
the oldest. What is made here is kept in the user's cache, under a temporary name that
is renamed when it works, so that an interrupted set-up is never taken for a finished
one. Our own side is built from this tree unless the caller names files.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent

OPENMPI_PACKAGES = ["openmpi-bin", "libopenmpi-dev"]

HOROVOD_PINS = ["horovod==0.28.1", "cloudpickle==3.1.2", "packaging==26.3", "psutil==7.2.2", "PyYAML==6.0.3"]
# What its set-up script imports.
HOROVOD_BUILD_PINS = ["setuptools==65.5.0", "wheel==0.45.1"]
HOROVOD_BUILD = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "MAKEFLAGS": "-j2",
}


class SetupError(Exception):
    """Something the benchmark needs is not there; the message says what to do."""


@dataclass(frozen=True)
class OurBinaries:
    """Our side of the comparison: the launcher's binary, the probe, and where `import ronde` finds the package."""

    ronde: Path
    probe: Path
    package: Path | None


@dataclass(frozen=True)
class UpstreamHorovod:
    """The peer that we succeed: an interpreter with the torch it was compiled for, and where its package lies."""

    python: Path
    package: Path


def say(message: str) -> None:
    """Tell the person at the terminal what goes on, apart from the report on standard output."""
    print(message, file=sys.stderr, flush=True)


def cache_dir() -> Path:
    """Return the user's cache folder for everything that Ronde's tools download or build."""
    named = os.environ.get("RONDE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ronde"


@functools.cache
def peer_python(name: str = "torch-newest") -> Path:
    """Return the interpreter of an environment with a framework, made on first use (0.5 GB to download)."""
    made = _run([ROOT / "tools" / "python-env", name], env={"PYTHON": sys.executable}, keep_output=True)
    return Path(made.strip()) / "bin" / "python"


def upstream_horovod() -> UpstreamHorovod:
    """Return upstream Horovod, compiled on first use for the oldest torch: with newer ones it does not compile."""
    python = peer_python("torch-oldest")
    recipe = repr((str(python), HOROVOD_PINS, HOROVOD_BUILD_PINS, sorted(HOROVOD_BUILD.items())))
    home = cache_dir() / f"bench-horovod-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not home.exists():
        say(f"compiling upstream Horovod into {home} (about 8 minutes of processor time)")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
        with _made_whole(home) as scratch, tempfile.TemporaryDirectory() as build:
            _run([*install, build, *HOROVOD_BUILD_PINS])
            env = {**HOROVOD_BUILD, "PYTHONPATH": build}
            _run([*install, scratch, "--no-build-isolation", *HOROVOD_PINS], env=env)
            _run([python, "-c", "import horovod.torch as hvd; hvd.init()"], env={"PYTHONPATH": str(scratch)})
    return UpstreamHorovod(python, home)


@functools.cache
def openmpi_program() -> Path:
    """Return the compiled Open MPI peer; install Debian's Open MPI when it is missing and we are root."""
    if not shutil.which("mpicc"):
        install = ["apt-get", "install", "-y", *OPENMPI_PACKAGES]
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise SetupError(f"Open MPI is a peer of this benchmark and mpicc is not there: {' '.join(install)}")
        say("installing Open MPI: " + " ".join(install))
        _run(install)
    return _compile_openmpi("peers/openmpi.c")


def openmpi_starter() -> Path:
    """Return the smallest Open MPI program, compiled; Open MPI is installed as for the other one."""
    openmpi_program()
    return _compile_openmpi("launch/first_mpi.c")


def openmpi_program_if_there() -> Path | None:
    """Return the compiled Open MPI peer, or nothing on a machine without Open MPI."""
    return _compile_openmpi("peers/openmpi.c") if shutil.which("mpicc") and shutil.which("mpirun") else None


def _compile_openmpi(name: str) -> Path:
    source = BENCH / name
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


def our_installation(ronde: Path | None, probe: Path | None, wheel: Path | None) -> OurBinaries:
    """Return our binaries with the launcher of the wheel, which users have and other hosts are sent."""
    ours = our_binaries(ronde, probe, wheel, need_package=True)
    if ronde is not None:
        return ours
    assert ours.package is not None
    (installed,) = ours.package.glob("ronde-*.data/scripts/ronde")
    return OurBinaries(installed, ours.probe, ours.package)


def our_wheel(wheel: Path | None) -> tuple[Path, Path]:
    """Return the launcher of the wheel, ready to run, and where `import horovod` finds the wheel's packages.

    The wheel's other programs lie beside it, as ready.
    """
    package = _unpacked_wheel(wheel)
    for program in package.glob("ronde-*.data/scripts/*"):
        program.chmod(0o755)
    (ronde,) = package.glob("ronde-*.data/scripts/ronde")
    return ronde, package


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
        with _made_whole(target) as scratch, zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
            # An installer puts these among the modules: the libraries that frameworks load.
            for libraries in scratch.glob("ronde-*.data/platlib"):
                shutil.copytree(libraries, scratch, dirs_exist_ok=True)
    return target


@contextmanager
def _made_whole(target: Path) -> Iterator[Path]:
    """Give a folder to fill, which becomes `target` if that ends without an error and is removed otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        yield scratch
        try:
            scratch.rename(target)
        except OSError:
            # Somebody else finished the same work first; theirs is as good.
            if not target.exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(
    command: list[object], cwd: Path | None = None, env: Mapping[str, str] | None = None, keep_output: bool = False
) -> str:
    """Run a command and return its output where that is wanted; what tools say otherwise is not part of the report."""
    words = [str(part) for part in command]
    output = subprocess.PIPE if keep_output else sys.stderr
    try:
        done = subprocess.run(words, check=True, cwd=cwd, env={**os.environ, **(env or {})}, stdout=output, text=True)
    except FileNotFoundError:
        raise SetupError(f"{words[0]} is not installed; it was needed for: {' '.join(words)}") from None
    except subprocess.CalledProcessError as error:
        raise SetupError(f"failed with status {error.returncode}: {' '.join(words)}") from None
    return done.stdout or ""
