"""Which contents a run counts for: a hash of the files that make up what was tested.

For a test executable these are the executable, and the programs and libraries of its package, which its tests start or
load. For a test file in Python they are the file, the modules of the tests that it uses, the installed wheel and the
pins of the environment. Data that tests read is not part of it, and neither is what they build themselves.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from suites import ROOT

# A list of strings reads the same in TOML and in Python, whose older versions cannot read the former.
PYTHON_PATH = re.compile(r"^pythonpath = (\[.*?\])", re.MULTILINE | re.DOTALL)


@functools.cache
def searched() -> tuple[Path, ...]:
    """Return the folders that pytest lets tests import from, as pyproject.toml says."""
    (names,) = PYTHON_PATH.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return tuple(ROOT / name for name in ast.literal_eval(names))


class Fingerprints:
    """Computes fingerprints, and reads files again only if they have changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], str]] = {}

    def of(self, inputs: Iterable[Path]) -> str:
        """Return the fingerprint of these files; none of them may be missing."""
        return hashlib.sha256(" ".join(map(self._digest, inputs)).encode()).hexdigest()[:16]

    def _digest(self, path: Path) -> str:
        stat = path.stat()
        state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if self._known.get(path, (None, ""))[0] != state:
            self._known[path] = (state, _digest(path))
        return self._known[path][1]


def _digest(path: Path) -> str:
    if path.name == "RECORD":
        return hashlib.sha256("\n".join(_installed(path)).encode()).hexdigest()
    with path.open("rb") as content:
        digest = hashlib.sha256()
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _installed(record: Path) -> Iterator[str]:
    """Yield what a record says of the files of a wheel, without where it was and when it was installed."""
    for line in record.read_text(encoding="utf-8").splitlines():
        name, digest, _size = line.rsplit(",", 2)
        if digest and ".dist-info/" not in name:
            yield f"{name},{digest}"


def modules_of(file: Path, folders: Iterable[Path] | None = None) -> tuple[Path, ...]:
    """Return a test file, the modules beside it that are no test files, and the modules of these folders they import.

    The folders are those of pytest if none are given.
    """
    folders = (file.parent, *(searched() if folders is None else folders))
    found: set[Path] = set()
    beside = [path for path in file.parent.glob("*.py") if not path.name.startswith("test_")]
    waiting = [file, *beside]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [module for name in _imported(path) for module in _located(name, (path.parent, *folders))]
    return tuple(sorted(found))


@functools.cache
def _imported(path: Path) -> tuple[str, ...]:
    """Return the names that a module imports, which may be modules or what is in them."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Relative ones are looked for in the folder of the module, which is always searched.
            names += (f"{node.module}.{name.name}" if node.module else name.name for name in node.names)
    return tuple(names)


def _located(name: str, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that importing a name would run, as far as they lie in these folders."""
    parts = name.split(".")
    for folder in folders:
        for end in range(1, len(parts) + 1):
            module = folder.joinpath(*parts[:end])
            yield from (path for path in (module.with_suffix(".py"), module / "__init__.py") if path.is_file())
