"""Our programs built from this tree, without optimising: for tests to which only bytes and results count."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The whole workspace, and an example: with less, crates of others get fewer features than in `cargo test`, and after a
# run of that everything would be compiled once more.
BUILD = ["cargo", "build", "--quiet", "--locked", "--workspace", "--bins", "--example", "variables"]


def programs() -> Path:
    """Build `ronde` and `ronde-probe`, where they are not up to date, and return their folder."""
    subprocess.run(BUILD, cwd=ROOT, check=True)
    return ROOT / "target" / "debug"
