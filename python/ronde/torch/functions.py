"""Bringing every rank to the same state: parameters, an optimizer's state, any object.

Objects are pickled, by ``cloudpickle`` where it is installed, so that lambdas and classes of the main script travel as
well. Nothing is unpickled but what a rank of the same job has sent.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ronde.process_sets import ProcessSet, global_process_set
from ronde.torch import ops
from ronde.torch.arguments import refuse
from ronde.torch.handles import synchronize, synchronize_all

try:
    from cloudpickle import dumps
except ImportError:
    from pickle import dumps

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite parameters with the root's: a ``state_dict()``, ``named_parameters()``, or a list of tensors.

    >>> import torch, horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.broadcast_parameters(torch.nn.Linear(2, 1).state_dict(), root_rank=0)
    """
    if isinstance(params, Mapping):
        items = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (str, bytes, Tensor)):
        items = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    for name, value in items:
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(f"{name or 'an entry'} is a {type(value).__name__}; use broadcast_object for it")
    synchronize_all(
        [ops.broadcast_async_(value, root_rank, name, process_set) for name, value in items if value is not None]
    )


class _Slot(NamedTuple):
    """Stands for a tensor in an optimizer's state; the tensor itself follows."""

    dtype: Any
    shape: tuple[int, ...]
    on_cpu: bool
    """Whether it is in the CPU's memory on the root: counters are, also where the parameters are not."""


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank the optimizer state of the root: its options, counters and buffers.

    A state that does not exist yet on this rank is made from the root's description, so no step is run for it and no
    parameter changes; scalars keep their Python types. ``model`` is accepted for scripts that pass it.

    >>> import torch, horovod.torch as hvd
    >>> hvd.init()
    >>> weights = [torch.nn.Parameter(torch.ones(2))]
    >>> hvd.broadcast_optimizer_state(torch.optim.Adam(weights), root_rank=0)
    """
    del model
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    is_root = global_process_set.rank() == root_rank
    tensors: list[Tensor] = []
    state = _take_out(optimizer.state_dict(), tensors) if is_root else None
    state = broadcast_object(state, root_rank, "optimizer_state", process_set)
    if not is_root:
        state = _fill_in(state, tensors, _home(optimizer))
    synchronize_all(
        [
            ops.broadcast_async_(tensor, root_rank, f"optimizer_state.{place}", process_set)
            for place, tensor in enumerate(tensors)
        ]
    )
    if not is_root:
        optimizer.load_state_dict(state)
        _keep_types(optimizer, state["state"])


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank.

    >>> import horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.broadcast_object({"epoch": 3})
    {'epoch': 3}
    """
    name = name or "object"
    is_root = global_process_set.rank() == root_rank
    data = _pickled(obj, "broadcast", f"broadcast.{name}.sz", process_set) if is_root else _number(0)
    length = synchronize(ops.broadcast_async(_number(data.numel()), root_rank, f"{name}.sz", process_set))
    if not is_root:
        data = torch.empty(int(length), dtype=torch.uint8, device="cpu")
    synchronize(ops.broadcast_async_(data, root_rank, f"{name}.t", process_set))
    return obj if is_root else _unpickled(data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks as a list, by rank.

    >>> import horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.allgather_object("mine")
    ['mine']
    """
    name = name or "object"
    data = _pickled(obj, "allgather", f"allgather.{name}.sz", process_set)
    lengths = synchronize(ops.allgather_async(_number(data.numel()), f"{name}.sz", process_set))
    together = synchronize(ops.allgather_async(data, f"{name}.t", process_set))
    return [_unpickled(part) for part in together.split(lengths.tolist())]


def _number(value: int) -> Tensor:
    # Objects stay in the CPU's memory, whatever device the script has made its default.
    return torch.tensor([value], device="cpu")


def _pickled(obj: Any, kind: str, key: str, process_set: ProcessSet) -> Tensor:
    """Pickle an object into a tensor; where that fails, the operation that it was for fails on all ranks."""
    try:
        data = dumps(obj)
    except Exception as error:
        try:
            refuse(kind, key, process_set, f"the object cannot be pickled: {error}")
        except ValueError:
            raise error from None
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpickled(data: Tensor) -> Any:
    # Not through NumPy, which need not be installed.
    return pickle.loads(bytes(data.untyped_storage()[data.storage_offset() : data.storage_offset() + data.numel()]))


def _keep_types(optimizer: torch.optim.Optimizer, state: dict[int, Any]) -> None:
    """Undo that ``load_state_dict`` gives buffers the type of their parameter: the root's may have another."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in state.items():
        loaded = optimizer.state[parameters[number]]
        for key, value in values.items():
            if isinstance(value, Tensor) and value.dtype is not loaded[key].dtype:
                loaded[key] = value.to(loaded[key].device)


def _take_out(state: Any, tensors: list[Tensor]) -> Any:
    """Copy a nested state with a slot in place of each tensor, and collect the tensors."""
    if isinstance(state, Tensor) and state.layout is torch.strided:
        tensors.append(state)
        return _Slot(state.dtype, tuple(state.shape), state.is_cpu)
    return _rebuilt(state, functools.partial(_take_out, tensors=tensors))


def _fill_in(state: Any, tensors: list[Tensor], home: torch.device) -> Any:
    """Copy a nested state with an empty tensor in place of each slot, and collect the tensors."""
    if isinstance(state, _Slot):
        place = torch.device("cpu") if state.on_cpu else home
        tensors.append(torch.empty(state.shape, dtype=state.dtype, device=place))
        return tensors[-1]
    return _rebuilt(state, functools.partial(_fill_in, tensors=tensors, home=home))


def _rebuilt(state: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(state, dict):
        return {key: change(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(change(value) for value in state)
    return state


def _home(optimizer: torch.optim.Optimizer) -> torch.device:
    """Return the device that this rank trains on."""
    devices = (parameter.device for group in optimizer.param_groups for parameter in group["params"])
    return next(devices, torch.device("cpu"))
