"""What the package says about itself is true: examples in docstrings, and the stubs of the extension."""

from __future__ import annotations

import ast
import doctest
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import ronde
from promises import import_binds
from ronde import _core


@pytest.mark.parametrize("name", ["ronde", "ronde._collectives", "ronde._job", "ronde.exceptions"])
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_function_shows_a_line_to_run() -> None:
    functions = [getattr(ronde, name) for name in ronde.__all__ if inspect.isfunction(getattr(ronde, name))]
    assert len(functions) > 15
    assert [function.__name__ for function in functions if ">>>" not in (function.__doc__ or "")] == []


@pytest.mark.parametrize(
    ("package", "module"), [("horovod", "horovod.runner"), ("horovod.data", "horovod.data.data_loader_base")]
)
def test_importing_a_package_of_horovod_binds_its_modules(package: str, module: str) -> None:
    import_binds(package, [module])


def test_the_stubs_describe_the_extension() -> None:
    stubs = ast.parse(Path(ronde.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))
    described = {
        node.name: [argument.arg for argument in node.args.args]
        for node in stubs.body
        if isinstance(node, ast.FunctionDef)
    }
    found = {
        name: list(inspect.signature(function).parameters)
        for name, function in vars(_core).items()
        if inspect.isbuiltin(function)
    }
    assert described == found
