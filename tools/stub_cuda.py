#!/usr/bin/env python3
"""Make a CUDA-built PyTorch wheel importable on a machine without CUDA.

PyPI's `torch` is linked against a dozen NVIDIA libraries that come as wheels of
their own, some 2.5 GB. Tests, examples and benchmarks here use torch on the CPU, so
this writes small stand-ins instead: for every shared library that torch asks for
and that neither torch nor the system has, one library of that name which defines
the functions torch imports from it. Each of them answers 100, which is CUDA's
"no device", so torch finds no GPU and goes on.

    python3 tools/stub_cuda.py SITE-PACKAGES/torch

Needs gcc, readelf and nm (Debian: gcc binutils).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100
UNVERSIONED = ""
CUDA_NAME = re.compile(r"(cuda|cu|nccl|nv|cupti|cudnn)")
RETURNS_TEXT = re.compile(r"Error(String|Name|Text)")

# The functions one library must define, by symbol version.
Exports = dict[str, set[str]]


def stub_missing_libraries(torch_dir: Path) -> list[str]:
    """Write the stand-ins into `torch_dir/lib` and return their names."""
    lib_dir = torch_dir / "lib"
    libraries = sorted(lib_dir.glob("*.so*"))
    if not libraries:
        raise SystemExit(f"error: no shared libraries in {lib_dir}: is {torch_dir} a torch package?")
    missing, system_paths = _classify_needed(libraries)
    if not missing:
        return []
    exports = _exports_of_missing(libraries, missing, system_paths)
    for soname in missing:
        _compile(lib_dir / soname, exports[soname])
    return missing


def _classify_needed(libraries: list[Path]) -> tuple[list[str], list[Path]]:
    """Split what torch's libraries need into what nobody has, and where the system has the rest."""
    shipped = {library.name for library in libraries}
    on_system = dict(re.findall(r"^\s+(\S+) \(.*=> (\S+)", _output("/sbin/ldconfig", "-p"), re.M))
    needed = set()
    for library in libraries:
        needed.update(re.findall(r"NEEDED.*\[(.*)\]", _output("readelf", "-dW", library)))
    elsewhere = {name for name in needed - shipped if not name.startswith("ld-linux")}
    missing = sorted(name for name in elsewhere if name not in on_system)
    return missing, [Path(on_system[name]) for name in sorted(elsewhere) if name in on_system]


def _exports_of_missing(libraries: list[Path], missing: list[str], system_paths: list[Path]) -> dict[str, Exports]:
    """Say which missing library has to define which functions.

    A versioned symbol names its library through the version. The others could come
    from any of them; the loader looks everywhere, so the first one takes them all.
    """
    owner_of_version: dict[str, str] = {}
    for library in libraries:
        soname = None
        for line in _output("readelf", "-VW", library).splitlines():
            if match := re.search(r"File: (\S+)", line):
                soname = match.group(1)
            elif (match := re.search(r"Name: (\S+)", line)) and soname in missing:
                owner_of_version[match.group(1)] = soname

    defined = set()
    for library in [*libraries, *system_paths]:
        for line in _output("nm", "-D", "--defined-only", library).splitlines():
            defined.add(line.split()[-1].partition("@")[0])

    exports: dict[str, Exports] = defaultdict(lambda: defaultdict(set))
    for library in libraries:
        for line in _output("nm", "-D", "--undefined-only", "--with-symbol-versions", library).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.replace("@@", "@").partition("@")
            if kind != "U" or name in defined:
                continue
            if version in owner_of_version:
                exports[owner_of_version[version]][version].add(name)
            elif not version and CUDA_NAME.match(name):
                exports[missing[0]][UNVERSIONED].add(name)
    return exports


def _compile(target: Path, exports: Exports) -> None:
    source, script = [], []
    for version, names in sorted(exports.items()):
        for name in sorted(names):
            if RETURNS_TEXT.search(name):
                source.append(f'const char *{name}(void) {{ return "no CUDA on this machine"; }}')
            else:
                source.append(f"int {name}(void) {{ return {NO_DEVICE}; }}")
        if version != UNVERSIONED:
            script.append(f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};")
    with tempfile.TemporaryDirectory() as scratch:
        code, versions = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        code.write_text("\n".join(source) + "\n")
        versions.write_text("\n".join(script) + "\n")
        command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{target.name}", "-o", str(target), str(code)]
        if script:
            command.append(f"-Wl,--version-script,{versions}")
        subprocess.run(command, check=True)


def _output(*command: object) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Stub the torch package named on the command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: stub_cuda.py SITE-PACKAGES/torch")
    for name in stub_missing_libraries(Path(sys.argv[1])):
        print(f"made {name}")


if __name__ == "__main__":
    main()
