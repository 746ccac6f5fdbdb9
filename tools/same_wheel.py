"""Makes sure that the environment of this interpreter holds exactly the files of a wheel, and prints the wheel's hash.

    target/env/NAME/bin/python tools/same_wheel.py dist/ronde-….whl

So that "the same wheel passes everywhere" is checked and not believed: environments are made one by one, and one of
them may hold an older build, or a file that somebody changed in place.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import zipfile
from pathlib import Path


def installed_as(name: str) -> Path:
    """Return where the installer puts a file of the wheel."""
    first, _, rest = name.partition("/")
    if first.endswith(".data"):
        scheme, _, rest = rest.partition("/")
        return Path(sysconfig.get_path(scheme)) / rest
    return Path(sysconfig.get_path("purelib")) / name


def different(wheel: Path) -> list[Path]:
    """Return the files that are missing or have other contents than in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        # The installer adds its own files to the record.
        names = [name for name in archive.namelist() if not name.endswith(("/", ".dist-info/RECORD"))]
        contents = {installed_as(name): archive.read(name) for name in names}
    return [path for path, content in contents.items() if not path.is_file() or path.read_bytes() != content]


def main() -> int:
    """Compare, and say what differs."""
    wheel = Path(sys.argv[1])
    found = different(wheel)
    for path in found:
        print(f"error: {path} is not as in {wheel}: install the wheel again", file=sys.stderr)
    print(f"{wheel.name}  sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
