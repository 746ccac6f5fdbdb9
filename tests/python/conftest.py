"""The launcher and the wheel as the tests see them: what is installed beside the Python that runs them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import ronde
from ranks import REPOSITORY


def pytest_configure() -> None:
    """Refuse to start with anything but the wheel, so that no test passes on the sources by mistake."""
    if Path(ronde.__file__).is_relative_to(REPOSITORY / "python") or shutil.which("ronde", path=bin_folder()) is None:
        raise pytest.UsageError("tests/python need the installed wheel: run `make test`")


def bin_folder() -> str:
    """Return the folder of the environment's executables."""
    return str(Path(sys.executable).parent)


@pytest.fixture(scope="session")
def wheel() -> Path:
    """Return the path of the built wheel."""
    (found,) = (REPOSITORY / "dist").glob("ronde-*.whl")
    return found


@pytest.fixture
def alone() -> None:
    """Make the process that runs the tests a job of size 1."""
    ronde.init()
