"""Variables as keys: sets and dictionaries of them, and arguments that caches look at.

Variables cannot be hashed. TensorFlow's have ``ref()`` for that; those of Keras 3 have nothing of the kind, so they get
a :class:`Reference` here.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Reference", "reference", "refs_to_vars", "vars_to_refs"]


class Reference:
    """Stands for an object, by identity."""

    def __init__(self, referred: Any) -> None:
        self._referred = referred

    def deref(self) -> Any:
        """Return the object."""
        return self._referred

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self._referred is other._referred

    def __hash__(self) -> int:
        return id(self._referred)

    def __repr__(self) -> str:
        return f"<Reference to {self._referred!r}>"


def reference(variable: Any) -> Any:
    """Return what stands for a variable, or a tensor, in sets and dictionaries."""
    return variable.ref() if hasattr(variable, "ref") else Reference(variable)


def vars_to_refs(vars: Any) -> Any:  # noqa: A002
    """Return references in place of the variables in nested lists, which become tuples, so that it can be hashed.

    >>> import tensorflow as tf
    >>> variable = tf.Variable(1.0)
    >>> refs_to_vars(vars_to_refs([[variable]]))[0][0] is variable
    True
    """
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(item) for item in vars)
    return reference(vars) if hasattr(vars, "assign") else vars


def refs_to_vars(refs: Any) -> Any:
    """Undo ``vars_to_refs``."""
    if isinstance(refs, tuple):
        return [refs_to_vars(item) for item in refs]
    return refs.deref() if hasattr(refs, "deref") else refs
