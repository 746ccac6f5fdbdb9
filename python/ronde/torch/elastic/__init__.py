"""Training that goes on when ranks come and go: wrap the training function with ``run`` and keep its state in a State.

>>> import horovod.torch as hvd
>>> @hvd.elastic.run
... def train(state):
...     return state.epoch
>>> hvd.init()
>>> train(hvd.elastic.TorchState(epoch=7))
7
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ronde._basics import basics
from ronde.elastic import run_fn
from ronde.torch.elastic.sampler import ElasticSampler
from ronde.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Run a training function, whose first argument is a State, again each time the ranks of the job have changed.

    After a failure the state goes back to the last ``commit``; when hosts come or go, it stays as it is. Either way
    this process leaves the job, joins it anew, and everybody takes over the state of rank 0.
    """
    return run_fn(func, _join_anew)


def _join_anew() -> None:
    basics.shutdown()
    basics.init()
