"""The tests here need TensorFlow and the installed wheel; `make test-frameworks` has environments for them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import ronde
from ranks import REPOSITORY

# TensorFlow tells at every start what it could be built for.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_configure() -> None:
    """Refuse to start with anything but the wheel, so that no test passes on the sources by mistake."""
    installed = Path(sys.executable).with_name("ronde").exists()
    if Path(ronde.__file__).is_relative_to(REPOSITORY / "python") or not installed:
        raise pytest.UsageError("tests/tensorflow need the installed wheel: run `make test-frameworks`")
