"""Loads the libraries through which frameworks call the engine from their own threads.

Each is a file beside this one. It holds no state of a job: it is given a table of the engine's functions, once, which
stays valid with and without a job.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from ronde import _core

__all__ = ["attach", "path_of"]


def path_of(name: str) -> str:
    """Return the file of a framework's plug-in library."""
    return str(Path(_core.__file__).with_name(f"libronde_{name}.so"))


def attach(name: str) -> ctypes.CDLL:
    """Load a plug-in library, if the framework has not done that, and give it the engine's functions."""
    library = ctypes.CDLL(path_of(name))
    library.ronde_attach.argtypes = [ctypes.c_void_p]
    library.ronde_attach.restype = ctypes.c_bool
    if not library.ronde_attach(_core.bridge_table()):
        raise ImportError(f"{path_of(name)} is of another version than {_core.__file__}; install ronde again")
    return library
