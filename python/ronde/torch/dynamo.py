"""Keeps Dynamo, the compiler behind ``torch.compile``, out of this package.

Collectives wait for other processes, which no graph can express: inside a compiled function they have to be calls
between two graphs. Dynamo is told to skip the files of the package, which also costs nothing when nobody compiles. It
takes a second or two to import, so that is left to those who use it: a finder on ``sys.meta_path`` sees the import.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["stay_opaque"]

_DYNAMO = "torch._dynamo"


def stay_opaque() -> None:
    """Have the package skipped: now if Dynamo is there already, else as soon as it is."""
    if _DYNAMO in sys.modules:
        _skip_package(sys.modules[_DYNAMO])
    else:
        sys.meta_path.insert(0, _Finder())


def _skip_package(dynamo: ModuleType) -> None:
    # From 2.3 on the rules about what to trace are in one module; before, the files to skip had their own. A version
    # that has neither would find out by itself that it cannot trace a collective, only later.
    for rules in ("trace_rules", "skipfiles"):
        add = getattr(getattr(dynamo, rules, None), "add", None)
        if add is not None:
            add("ronde")
            return


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find Dynamo, and adds a step after it has been loaded. Leaves once it was of use."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _skip_package(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
