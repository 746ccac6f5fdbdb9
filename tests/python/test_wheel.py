"""The wheel is what it promises: everything inside, nothing from outside but an old glibc, installed in seconds."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

import ronde

SYSTEM_LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux-[a-z0-9-]+)\.so\.\d+")
BINARIES = [
    "ronde/_core.abi3.so",
    *(f"ronde-{ronde.__version__}.data/platlib/ronde/libronde_{name}.so" for name in ("tensorflow", "jax", "mxnet")),
    f"ronde-{ronde.__version__}.data/scripts/ronde",
    f"ronde-{ronde.__version__}.data/scripts/ronde-kube",
    f"ronde-{ronde.__version__}.data/scripts/ronde-cluster",
    f"ronde-{ronde.__version__}.data/scripts/horovodrun",
]


@pytest.fixture(scope="module")
def content(wheel: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel)


def test_one_file_serves_every_python_from_3_9_on(wheel: Path) -> None:
    assert re.fullmatch(rf"ronde-{ronde.__version__}-cp39-abi3-manylinux_2_28_\w+\.whl", wheel.name)


def test_it_holds_extension_packages_types_and_executables(content: zipfile.ZipFile) -> None:
    names = set(content.namelist())
    modules = {"ronde/__init__.py", "ronde/_core.pyi", "ronde/py.typed", "horovod/__init__.py", "horovod/py.typed"}
    assert names >= {*BINARIES, *modules}
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_it_depends_on_no_other_package(content: zipfile.ZipFile) -> None:
    metadata = Parser().parsestr(content.read(f"ronde-{ronde.__version__}.dist-info/METADATA").decode())
    assert [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line] == []
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.9"


@pytest.mark.parametrize("name", BINARIES)
def test_binaries_need_only_the_system_s_own_libraries(content: zipfile.ZipFile, name: str) -> None:
    elf = ELFFile(io.BytesIO(content.read(name)))
    needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert needed
    assert [library for library in needed if not SYSTEM_LIBRARIES.fullmatch(library)] == []
    assert elf.get_section_by_name(".symtab") is None, "not stripped"


def test_auditwheel_finds_the_promised_glibc_or_an_older_one(wheel: Path) -> None:
    report = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = re.search(r'consistent with the\s+following platform tag:\s+"manylinux_2_(\d+)_', report)
    assert found, report
    assert int(found[1]) <= 28, report


def test_a_bare_environment_takes_it_without_network_or_compiler(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True, timeout=120)
    binaries = tmp_path / "bin"
    subprocess.run(
        [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel],
        env={"PATH": str(binaries), "CC": "/bin/false"},
        check=True,
        timeout=120,
    )

    def output(*command: str | Path) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    for program in ("ronde", "ronde-kube", "ronde-cluster", "horovodrun"):
        assert output(binaries / program, "--version").endswith(ronde.__version__)
    script = (
        "import importlib.util, ronde; assert importlib.util.find_spec('numpy') is None; ronde.init();"
        "print(ronde.__version__, ronde.size(), bytes(ronde.allreduce(b'abc', op=ronde.Sum)))"
    )
    assert output(binaries / "python", "-c", script) == f"{ronde.__version__} 1 b'abc'"
    both = output(
        binaries / "ronde",
        "run",
        "-np",
        "2",
        binaries / "python",
        "-c",
        "import ronde; ronde.init(); print(ronde.size())",
    )
    assert sorted(line for line in both.splitlines() if line.startswith("[")) == ["[0] 2", "[1] 2"]
