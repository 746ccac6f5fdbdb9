"""What the tests of every front ask of its interface: arguments, modules, examples, an import that gives advice."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from typing import Any

from ronde.process_sets import global_process_set

# What all fronts have, by name; the arguments without types.
BASICS = {
    "init": "comm=None, process_sets=None",
    **dict.fromkeys(
        [
            "shutdown",
            "is_initialized",
            "rank",
            "size",
            "local_rank",
            "local_size",
            "cross_rank",
            "cross_size",
            "stop_timeline",
            "mpi_threads_supported",
            "mpi_enabled",
            "mpi_built",
            "gloo_enabled",
            "gloo_built",
            "nccl_built",
            "ddl_built",
            "ccl_built",
            "cuda_built",
            "rocm_built",
        ],
        "",
    ),
    "start_timeline": "file_path, mark_cycles=False",
}

# The modules that importing any front of Horovod 0.28.1 binds.
COMMON_MODULES = [
    "horovod.common",
    "horovod.common.basics",
    "horovod.common.elastic",
    "horovod.common.exceptions",
    "horovod.common.process_sets",
    "horovod.common.util",
    "horovod.runner",
]


def signature(function: Any, no_compression: object) -> str:
    """Write down arguments and defaults, without types."""
    words = {id(global_process_set): "GLOBAL", id(no_compression): "NONE"}
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        shown = words.get(id(default), "AVERAGE" if parameter.name == "op" and default == 0 else repr(default))
        parts.append(parameter.name if default is parameter.empty else f"{parameter.name}={shown}")
    return ", ".join(parts)


def runs(script: str) -> str:
    """Run a script in a process of its own, which has to end well, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def examples_run(modules: list[str]) -> None:
    """Run the examples in the docstrings of modules, each of which has some; the process is in a job afterwards."""
    runs(
        f"""
        import doctest, importlib, sys
        for name in {modules!r}:
            result = doctest.testmod(importlib.import_module(name))
            if result.failed or not result.attempted:
                sys.exit(f"{{name}}: {{result}}")
        """
    )


def import_binds(package: str, modules: list[str]) -> None:
    """Import a package, and nothing else, in a new interpreter: modules have to be attributes down from the top."""
    runs(
        f"""
        import {package}
        import operator, types
        for name in {modules!r}:
            found = operator.attrgetter(name.partition(".")[2])(horovod)
            assert isinstance(found, types.ModuleType), f"{{name}} is {{found!r}}"
            assert found.__name__ == name, f"{{name}} is {{found.__name__}}"
        """
    )


def import_advises(front: str, hidden: str, advice: str) -> None:
    """Import a front where a framework is missing: the error has to say what to install."""
    runs(
        f"""
        import sys
        sys.modules[{hidden!r}] = None
        try:
            import {front}
        except ImportError as error:
            assert {advice!r} in str(error), error
        else:
            sys.exit("no ImportError")
        """
    )
