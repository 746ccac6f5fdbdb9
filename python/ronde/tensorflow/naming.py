"""The names of operations, by which ranks find each other's.

In a graph every operation has a name, unique there and, since ranks build the same graph, the same on all of them. It
is found out before the operation is made and goes along as an attribute, because the runtime renames nodes when it puts
the body of one function into another. Run eagerly, an operation without a name is counted by the library instead.

``tf.function`` lets operations with side effects run one after the other. Collectives need no such order: they find
each other by name, and one after the other they would neither overlap with the computation nor be fused.
:func:`let_run` exempts them.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

__all__ = ["let_run", "name_and_key", "normalised"]


def normalised(name: str) -> str:
    """Replace what a name in a graph cannot have.

    >>> normalised("dense/kernel:0")
    'dense_kernel_0'
    """
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def name_and_key(kind: str, tensors: list[Any], name: str | None, ignore_name_scope: bool) -> tuple[str | None, str]:
    """Return the name of the operation to be made, and the name by which ranks match it.

    Without a name given, a graph's is made of the kind and the name of the tensor, or of the first and the last of
    several. ``ignore_name_scope`` drops what the scopes around it add.
    """
    if tf.executing_eagerly():
        return name, name or ""
    if name is None:
        ends = tensors[:1] if len(tensors) == 1 else [tensors[0], tensors[-1]]
        name = "_".join([f"Horovod{kind}", *[_name_of(tensor) for tensor in ends]])
    else:
        name = re.sub(r"[^a-zA-Z0-9_.\\/>-]", "_", name)
        if not re.match("[A-Za-z0-9.]", name):
            name = f"Horovod{kind}_{name}"
    key: str = tf.compat.v1.get_default_graph().unique_name(name, mark_as_used=False)
    return name, key.rpartition("/")[2] if ignore_name_scope else key


def _name_of(tensor: Any) -> str:
    """Return the name of a tensor. One from outside of the graph is named by a number that other ranks do not share."""
    try:
        name = normalised(str(tensor.name))
    except (AttributeError, ValueError):
        return "captured"
    return "captured" if re.fullmatch("[0-9_]+", name) else name


def let_run(result: Any) -> Any:
    """Let the operation behind a result, or a list of them, run as soon as its inputs are there; return the result."""
    if not tf.executing_eagerly():
        operation = (result[0] if isinstance(result, (list, tuple)) else result).op
        dependencies = operation.graph.experimental_acd_manager
        if dependencies is not None:
            dependencies.run_independently(operation)
    return result
