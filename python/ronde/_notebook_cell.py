"""A cell of a notebook on its way to the ranks: its source, and those names of the notebook that it uses.

On a rank all of it lives in one namespace, the cell as well as the functions that came with it, so that a function of
the notebook sees what the cell assigns, as it would in the notebook.
"""

from __future__ import annotations

import ast
import linecache
import symtable
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from ronde import _call

# A name that is bound by such a statement is bound whatever happens.
_BINDING = (ast.Assign, ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom)
_SCOPES = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Lambda)


class CannotTravel(Exception):  # noqa: N818
    """A name that the cell uses cannot be sent to the ranks."""


@dataclass(frozen=True, repr=False)
class Cell:
    """What a rank needs to run a cell."""

    file: str
    """What stands for a file in tracebacks."""
    sources: Mapping[str, str]
    """The text of that file, and of others like it: cells that define functions which this one calls."""
    names: Mapping[str, Any]
    anchor: FunctionType
    """A function of the notebook. Wherever it gets, functions of the notebook have the same globals."""

    def __repr__(self) -> str:
        return "the cell"

    def __call__(self) -> Any:
        """Run the cell; return the value of its last line, if that is an expression."""
        for file, text in self.sources.items():
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        namespace = self.anchor.__globals__
        namespace.update(self.names, __name__="__main__")
        tree = parse(self.sources[self.file], self.file)
        last = tree.body[-1]
        if not isinstance(last, ast.Expr):
            return exec(compile(tree, self.file, "exec"), namespace)
        tree.body.pop()
        exec(compile(tree, self.file, "exec"), namespace)
        return eval(compile(ast.Expression(last.value), self.file, "eval"), namespace)


def parse(source: str, file: str) -> ast.Module:
    """Parse a cell below its first line, which is the magic's; lines keep their numbers in the notebook."""
    return ast.parse(_below(source), file)


def _below(source: str) -> str:
    return "\n" + source.partition("\n")[2]


def pack(
    source: str, file: str, namespace: dict[str, Any], hidden: Mapping[str, Any], others: Mapping[str, str]
) -> bytes:
    """Make bytes of a call that runs the cell with the names of the notebook that it uses.

    ``hidden`` are names that every notebook has, ``others`` the cells before it, by what stands for their files.
    """
    tree = parse(source, file)
    # Finds what parsing does not, such as a `return`, before a job is started.
    compile(_below(source), file, "exec")
    names = {
        name: namespace[name]
        for name in used_names(tree)
        if name in namespace and not (name in hidden and namespace[name] is hidden[name])
    }
    anchor = FunctionType((lambda: None).__code__, namespace, "anchor")
    anchor.__module__ = "__main__"
    cell = Cell(file, {**others, file: source}, names, anchor)
    try:
        return _call.pack(cell, (), {})
    except ImportError:
        raise
    except Exception:
        for name, value in names.items():
            complaint = _complaint(name, value, seen=set())
            if complaint is not None:
                raise CannotTravel(f"{complaint}; make it in this cell, or leave it out") from None
        raise


def used_names(tree: ast.Module) -> list[str]:
    """Return the global names that a cell reads and has not bound before."""
    return list(dict.fromkeys(_unbound(tree.body, set())))


def _unbound(statements: Iterable[ast.stmt], bound: set[str]) -> Iterator[str]:
    """Give the global names that statements read and that are not bound; what they bind is bound from then on."""
    for statement in statements:
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                yield from _unbound(_taken(item.context_expr, item.optional_vars), bound)
            yield from _unbound(statement.body, bound)
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            # There may be nothing to go through, so nothing is bound afterwards.
            yield from _unbound([*_taken(statement.iter, statement.target), *statement.body], set(bound))
            yield from _unbound(statement.orelse, set(bound))
        else:
            table = symtable.symtable(ast.unparse(statement), "cell", "exec")
            yield from (name for name in (*_read(table), *_updated(statement)) if name not in bound)
            if isinstance(statement, _BINDING):
                bound |= {name.get_name() for name in table.get_symbols() if name.is_assigned() or name.is_imported()}


def _taken(value: ast.expr, target: ast.expr | None) -> list[ast.stmt]:
    """Return what binds a target, if there is one, as statements: the value is read first."""
    read: list[ast.stmt] = [ast.Expr(value)]
    if target is not None:
        read.append(ast.Assign([target], ast.Constant(None)))
    return [ast.copy_location(statement, value) for statement in read]


def _read(table: symtable.SymbolTable) -> Iterator[str]:
    """Give the global names that code reads, the functions and classes in it included."""
    for symbol in table.get_symbols():
        if table.get_type() == "module":
            is_read = symbol.is_referenced()
        else:
            is_read = symbol.is_declared_global() or (symbol.is_global() and symbol.is_referenced())
        if is_read:
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _read(inner)


def _updated(node: ast.AST) -> Iterator[str]:
    """Give the names of every ``name += 1`` outside functions, which reads what it binds."""
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    if not isinstance(node, _SCOPES):
        for inner in ast.iter_child_nodes(node):
            yield from _updated(inner)


def _complaint(name: str, value: Any, seen: set[int]) -> str | None:
    """Say what is wrong with a name that does not travel, or with one that its function uses."""
    seen.add(id(value))
    try:
        _call.dumps(value)
    except Exception as error:
        if isinstance(value, FunctionType):
            for inner in _names_in(value.__code__):
                held = value.__globals__.get(inner, value)
                if id(held) not in seen and (complaint := _complaint(inner, held, seen)) is not None:
                    return f"{complaint}, and {name} uses it"
        return f"{name} cannot be sent to the ranks ({_call.in_words(error)})"
    return None


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
