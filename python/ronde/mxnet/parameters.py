"""``broadcast_parameters``: every rank starts from the root's weights."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from ronde._basics import basics
from ronde.mxnet.ops import broadcast_

__all__ = ["broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrite parameters with the root's: ``net.collect_params()``, or a dict of arrays or parameters.

    A parameter whose shape is not known yet is broadcast as soon as it gets its values, which is in the first forward
    pass. ``prefix`` goes in front of the names by which ranks match parameters, where two models have the same ones.

    >>> import mxnet as mx, horovod.mxnet as hvd
    >>> hvd.init()
    >>> net = mx.gluon.nn.Dense(1)
    >>> net.initialize()
    >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    """
    if not isinstance(params, (dict, ParameterDict)):
        raise ValueError(f"broadcast_parameters takes a dict or a ParameterDict, not {type(params).__name__}")
    if not (prefix is None or isinstance(prefix, str)):
        raise ValueError(f"prefix is a string or None, not {type(prefix).__name__}")
    if basics.size() == 1:
        return
    sent = []
    for name, value in sorted(params.items()):
        key = f"{prefix or ''}{name}"
        try:
            copies = value.list_data() if isinstance(value, Parameter) else [value]
        except DeferredInitializationError:
            _broadcast_when_initialized(value, root_rank, key)
        else:
            sent += _broadcast_copies(copies, root_rank, key)
    # Errors come out here, and no rank trains before all have the same weights.
    for array in sent:
        array.wait_to_read()


def _broadcast_copies(copies: list[Any], root_rank: int, name: str) -> list[Any]:
    """Broadcast the first copy of a parameter, which has one in each context of this rank, and copy it to the rest."""
    first, *others = copies
    broadcast_(first, root_rank, name)
    with mx.autograd.pause():
        for other in others:
            first.copyto(other)
    return copies


def _broadcast_when_initialized(parameter: Any, root_rank: int, name: str) -> None:
    """Have a parameter broadcast right after it gets its first values, once."""
    initialize = parameter._init_impl

    def initialize_and_broadcast(*args: Any, **kwargs: Any) -> None:
        del parameter._init_impl
        initialize(*args, **kwargs)
        _broadcast_copies(parameter.list_data(), root_rank, name)

    parameter._init_impl = initialize_and_broadcast
