"""The tests here need MXNet and the installed wheel; `make test-frameworks` has an environment for them."""

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
        raise pytest.UsageError("tests/mxnet need the installed wheel: run `make test-frameworks`")
