"""`ronde cluster` as tests run it: in a folder of its own, with fakes in the place of what it would start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded"
FAKE_TERRAFORM = HERE / "fake_terraform.py"
RONDE = Path(sys.executable).parent / "ronde"

# Variables by which a test could find another cloud or cluster than its own.
OTHERS = ("OS_", "TF_", "ANSIBLE_")

# What `init` is told: a wheel that is none, machines that the fake cloud has, and where to log in.
WHEEL = "ronde-0.1.0-py3-none-any.whl"
MACHINES = ["--workers", "2", "--flavor", "small", "--os-image", "debian-12", "--admin-cidr", "203.0.113.7/32"]
KNOWN = ["--cloud", "lab", *MACHINES]


def wheel() -> Path:
    """Return the wheel that images are built with."""
    (found,) = (HERE.parents[1] / "dist").glob("ronde-*.whl")
    return found


class Command:
    """A cluster folder, and `ronde cluster` in it."""

    def __init__(self, folder: Path, story: str = "up") -> None:
        self.folder = folder
        self.terraform = str(FAKE_TERRAFORM)
        # Goes before every command line, to run it elsewhere.
        self.before: list[str] = []
        # How many seconds a verb may take.
        self.patience = 120
        self.programs = folder.parent / "programs"
        self.programs.mkdir(exist_ok=True)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
        # Pages are opened on no screen but a test's own.
        for screen in ("DISPLAY", "WAYLAND_DISPLAY"):
            self.env.pop(screen, None)
        self.env["PATH"] = f"{self.programs}:{self.env['PATH']}"
        self.tell(story)

    def tell(self, story: str) -> None:
        """Let Terraform tell another story from now on."""
        self.env["FAKE_TERRAFORM"] = str(RECORDED / story)

    def fake(self, name: str, script: str) -> Path:
        """Put a program into the PATH."""
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        return path

    def words(self, verb: str, *words: str) -> list[str]:
        """Return the command line of a verb."""
        folder = () if verb == "init" else ("--folder", str(self.folder))
        own = ("--terraform", self.terraform) if verb in ("plan", "up", "scale", "down") else ()
        return [*self.before, str(RONDE), "cluster", verb, *folder, *own, *words]

    def run(self, verb: str, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end; nobody is there to be asked."""
        return subprocess.run(
            self.words(verb, *words),
            env={**self.env, **(env or {})},
            cwd=self.folder.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.patience,
            check=False,
        )

    def start(
        self, verb: str, *words: str, stderr: int = subprocess.STDOUT, session: bool = False
    ) -> subprocess.Popen[str]:
        """Start a verb, in a session of its own if that is asked for; nobody is there to be asked."""
        return subprocess.Popen(
            self.words(verb, *words),
            env=self.env,
            cwd=self.folder.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=session,
            # A runner in the background may ignore interrupts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )

    @contextmanager
    def running(self, verb: str, *words: str, stderr: int = subprocess.STDOUT) -> Iterator[subprocess.Popen[str]]:
        """Start a verb, and kill it at the end if it is still there."""
        process = self.start(verb, *words, stderr=stderr)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def gone(process: int) -> bool:
    """Whether a process has ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def await_that(what: str, is_so: object, seconds: float = 60.0) -> None:
    """Wait until something is so; it has no event that another process could wait for."""
    assert callable(is_so)
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.02)  # sleep: between two looks
