"""Training that goes on when ranks come and go: wrap the training function with ``run`` and keep its state in a State.

>>> import ronde.jax as hvd
>>> @hvd.elastic.run
... def train(state):
...     return state.epoch
>>> hvd.init()
>>> train(hvd.elastic.JaxState(epoch=7))
7
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from ronde._basics import basics
from ronde.elastic import ObjectState, run_fn
from ronde.exceptions import HorovodInternalError
from ronde.jax import job
from ronde.jax.functions import broadcast_object

__all__ = ["JaxState", "run"]


class JaxState(ObjectState):
    """State made of trees of arrays and plain values, given by keyword and available as attributes.

    Arrays are immutable, so what was saved stays as it was; assign new values as training goes on.

    >>> import jax.numpy as jnp, ronde.jax as hvd
    >>> hvd.init()
    >>> state = hvd.elastic.JaxState(params={"w": jnp.ones(2)}, batch=0)
    >>> state.batch = 3
    >>> state.restore(); state.batch
    0
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Run a training function, whose first argument is a State, again each time the ranks of the job have changed.

    After a failure the state goes back to the last ``commit``; when hosts come or go, it stays as it is. Either way
    this process leaves the job, joins it anew, and everybody takes over the state of rank 0.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except jax.errors.JaxRuntimeError as error:
            # A compiled program has no other exception. A lost rank has this status (crates/jax/src/collective.rs), or
            # where the program has called back into Python, its own exception is part of the text.
            if str(error).startswith("ABORTED") or HorovodInternalError.__name__ in str(error):
                raise HorovodInternalError(str(error)) from error
            raise

    return run_fn(translated, _join_anew)


def _join_anew() -> None:
    job.shutdown()
    # Programs know how many ranks there were.
    jax.clear_caches()
    job.init()
