"""The tests here need Keras and the installed wheel, and run with whatever of TensorFlow, PyTorch and JAX is there.

`make test-frameworks` has environments for Keras 2 and 3 on TensorFlow, and for Keras 3 on each of the other two.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

import ronde
from ranks import REPOSITORY


def _backend() -> str:
    """Return what runs Keras here; where TensorFlow is not installed, the ranks have to be told."""
    installed = [name for name in ("tensorflow", "torch", "jax") if importlib.util.find_spec(name)]
    if not installed:
        raise pytest.UsageError("tests/keras need TensorFlow, PyTorch or JAX besides Keras: `make test-frameworks`")
    return os.environ.setdefault("KERAS_BACKEND", installed[0])


# TensorFlow says a lot about the processor.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
collect_ignore = [] if _backend() == "tensorflow" else ["test_tensorflow.py"]


def pytest_configure() -> None:
    """Refuse to start with anything but the wheel, so that no test passes on the sources by mistake."""
    installed = Path(sys.executable).with_name("ronde").exists()
    if Path(ronde.__file__).is_relative_to(REPOSITORY / "python") or not installed:
        raise pytest.UsageError("tests/keras need the installed wheel: run `make test-frameworks`")
