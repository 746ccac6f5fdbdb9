"""Variables as keys, and whether a graph is being built."""

from tensorflow import (
    executing_eagerly as _executing_eagerly,
)

from ronde.tensorflow.references import (
    refs_to_vars,
    vars_to_refs,
)

__all__ = [
    "_executing_eagerly",
    "refs_to_vars",
    "vars_to_refs",
]
