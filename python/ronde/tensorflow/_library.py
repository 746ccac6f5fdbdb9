"""Loads the library with Horovod's operations into TensorFlow, once.

``ops`` is the module that TensorFlow generates for them: ``ops.horovod_allreduce`` and so on. The library gets the
engine's functions right after that.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import tensorflow as tf

from ronde import process_sets
from ronde._plugin import attach, path_of

__all__ = ["is_asynchronous", "ops"]


def _load() -> tuple[Any, ctypes.CDLL]:
    # TensorFlow has to load it first: it makes functions of what is registered meanwhile.
    generated = tf.load_op_library(path_of("tensorflow"))
    library = attach("tensorflow")
    library.ronde_tensorflow_problem.restype = ctypes.c_char_p
    problem = library.ronde_tensorflow_problem()
    if problem is not None:
        raise ImportError(problem.decode())
    library.ronde_tensorflow_start_over.argtypes = [ctypes.c_uint32]
    library.ronde_tensorflow_start_over.restype = None
    library.ronde_tensorflow_is_asynchronous.restype = ctypes.c_bool
    if not library.ronde_tensorflow_is_asynchronous():
        warnings.warn(
            f"TensorFlow {tf.__version__} is not known to let operations end on another thread, so each collective of "
            "a graph keeps one of TensorFlow's threads while it waits. Ranks that have more of them in flight than "
            "threads can wait for each other for good: use grouped operations, num_groups=1 in optimizers, or a "
            "TensorFlow that Ronde was tested with.",
            RuntimeWarning,
            stacklevel=2,
        )
    return generated, library


ops, _library = _load()
process_sets.counted_elsewhere.append(_library.ronde_tensorflow_start_over)


def is_asynchronous() -> bool:
    """Tell whether many collectives of a graph can be in flight at once; if not, each occupies a thread."""
    return bool(_library.ronde_tensorflow_is_asynchronous())
