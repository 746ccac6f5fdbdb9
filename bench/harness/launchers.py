"""How each launcher is called: ours, Open MPI's `mpirun` and upstream's `horovodrun`.

All get a clean environment, so that nothing of the person at the terminal decides who is faster. Ours is laid out as
`pip install` would do it, since a launcher that sends itself to other hosts sends what was installed with it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.environment import BENCH, OurBinaries, UpstreamHorovod

RANKS = BENCH / "launch"
# What all launchers find programs by.
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Installed:
    """Our launcher and package where an installation has them, as processes there see it."""

    prefix: Path

    @property
    def ronde(self) -> Path:
        """The launcher."""
        return self.prefix / "bin" / "ronde"

    @property
    def packages(self) -> Path:
        """The folder that Python imports from."""
        return self.prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def install(ours: OurBinaries, installed: Installed, root: Path = Path("/")) -> None:
    """Copy our binary and package to where `installed` is, seen from `root`."""
    assert ours.package is not None
    program, packages = (root / path.relative_to("/") for path in (installed.ronde, installed.packages))
    program.parent.mkdir(parents=True)
    shutil.copyfile(ours.ronde, program)
    program.chmod(0o755)
    for module in ("ronde", "horovod"):
        shutil.copytree(ours.package / module, packages / module)


def clean(home: str, variables: Mapping[str, object] | None = None) -> list[str]:
    """Return what to put before a command so that it sees these variables and the usual few."""
    usual = {"HOME": home, "PATH": PATH, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
    return ["env", "-i", *(f"{name}={value}" for name, value in {**usual, **(variables or {})}.items())]


def ronde_run(installed: Installed, options: Sequence[object], command: Sequence[object]) -> list[object]:
    """Return how our launcher is called, without the environment."""
    return [installed.ronde, "run", *options, *command]


def mpirun(options: Sequence[object], command: Sequence[object]) -> list[object]:
    """Return how Open MPI's launcher is called."""
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *as_root, *options, *command]


def horovodrun(peer: UpstreamHorovod, options: Sequence[object], command: Sequence[object]) -> list[object]:
    """Return how upstream's launcher is called, where its package is on Python's path."""
    start = "from horovod.runner.launch import run_commandline; run_commandline()"
    return [peer.python, "-c", start, "--gloo", *options, *command]
