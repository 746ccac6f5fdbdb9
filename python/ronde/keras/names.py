"""The names by which ranks match the gradients of an optimizer.

They have to be the same on all ranks, and paths of variables are not: Keras numbers layers through all of a process, so
a rank that has made one model more than the others calls ``dense_3`` what they call ``dense_2``; and the layers of a
model that one rank has loaded from a checkpoint may lack a scope that they have in a model that was built. So a
gradient is called after its place among the variables and the last part of the path, which says what the variable is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ronde.process_sets import ProcessSet

__all__ = ["gradient_names", "leaf"]


def leaf(path: str) -> str:
    """Return the last part of the path of a variable, as a name in a graph can have it.

    >>> leaf("sequential_1/dense_12/kernel:0")
    'kernel'
    """
    return re.sub(r"[^a-zA-Z0-9_]", "_", re.sub(r":\d+$", "", path).rpartition("/")[2])


def gradient_names(paths: Sequence[str], process_set: ProcessSet) -> list[str]:
    """Return a name for the gradient of each variable, which no other optimizer of the process set has.

    All optimizers that were ever used count, not only those alive: when an object is collected differs between ranks.

    >>> from ronde.process_sets import ProcessSet
    >>> ranks = ProcessSet([0, 1])
    >>> gradient_names(["dense_1/kernel"], ranks), gradient_names(["dense_2/kernel"], ranks)
    (['gradient.0.kernel'], ['optimizer1.gradient.0.kernel'])
    """
    names = [f"gradient.{place}.{leaf(path)}" for place, path in enumerate(paths)]
    others = process_set.names_of_optimizers
    prefix = f"optimizer{len(others)}." if any(set(names) & other for other in others) else ""
    others.append(set(names))
    return [f"{prefix}{name}" for name in names]
