"""The tests here need PyTorch and the installed wheel; `make test-torch` has an environment for each version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import ronde
from ranks import REPOSITORY

# pytorch-ignite needs PyTorch 2.2, so the environment of an older one does not have it.
collect_ignore = [] if torch.torch_version.TorchVersion(torch.__version__) >= (2, 2) else ["test_ignite.py"]


def pytest_configure() -> None:
    """Refuse to start with anything but the wheel, so that no test passes on the sources by mistake."""
    installed = Path(sys.executable).with_name("ronde").exists()
    if Path(ronde.__file__).is_relative_to(REPOSITORY / "python") or not installed:
        raise pytest.UsageError("tests/torch need the installed wheel: run `make test-torch`")
