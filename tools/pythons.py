"""Tells for which Pythons the environment of a framework can be made.

Where that is not all that the project supports, a line of tools/requirements-NAME.txt says so, and why:

    # Python: 3.10 to 3.11, since NumPy 1.23 has no wheels for later ones

Usage: python tools/pythons.py NAME...
Prints those of the environments that the interpreter it runs on can have, and on standard error a line for each other.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
RANGE = re.compile(r"^# Python: (3)\.(\d+) to (3)\.(\d+), (.+)$", re.MULTILINE)


def why_left_out(name: str, version: tuple[int, int] = sys.version_info[:2]) -> str | None:
    """Return a line that says why an environment cannot be made with a version of Python, or None if it can."""
    limits = RANGE.search((TOOLS / f"requirements-{name}.txt").read_text())
    if limits is None:
        return None
    oldest, newest = (int(limits[1]), int(limits[2])), (int(limits[3]), int(limits[4]))
    if oldest <= version <= newest:
        return None
    supported = " to ".join(".".join(map(str, limit)) for limit in dict.fromkeys((oldest, newest)))
    return f"{name} is left out on Python {version[0]}.{version[1]}: it needs {supported}, {limits[5]}"


def main() -> None:
    """Do what the command line says."""
    for name in sys.argv[1:]:
        reason = why_left_out(name)
        print(reason or name, file=sys.stderr if reason else sys.stdout)


if __name__ == "__main__":
    main()
