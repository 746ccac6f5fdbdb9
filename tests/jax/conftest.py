"""The tests here need JAX, optax and the wheel; `make test-frameworks FRAMEWORKS=jax-newest` has an environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import ronde
from ranks import REPOSITORY


def pytest_configure() -> None:
    """Refuse to start with anything but the wheel, so that no test passes on the sources by mistake."""
    installed = Path(sys.executable).with_name("ronde").exists()
    if Path(ronde.__file__).is_relative_to(REPOSITORY / "python") or not installed:
        raise pytest.UsageError("tests/jax need the installed wheel: run `make test-frameworks FRAMEWORKS=jax-newest`")
