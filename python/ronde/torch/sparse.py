"""Sparse tensors are exchanged as what they are made of: places and values, which all ranks gather."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ronde._collectives import Average, Sum
from ronde.process_sets import ProcessSet, global_process_set
from ronde.torch.handles import synchronize_all
from ronde.torch.ops import allgather_async

__all__ = ["sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start reducing a sparse tensor (Average or Sum) and return a function that waits and gives the result."""
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async takes sparse COO tensors; this one's layout is {tensor.layout}")
    if op not in (Average, Sum):
        raise ValueError("sparse tensors can be reduced with Average and Sum")
    # Equal places are added up first, so that they travel once.
    tensor = tensor.detach().coalesce()
    places = tensor.indices().t()
    handles = [
        allgather_async(part, name if name is None else f"{name}.{kind}", process_set)
        for part, kind in ((places, "indices"), (tensor.values(), "values"))
    ]
    return functools.partial(_finish, handles, tensor.shape, op, process_set)


def _finish(handles: list[int], shape: torch.Size, op: int, process_set: ProcessSet) -> torch.Tensor:
    places, values = synchronize_all(handles)
    if op == Average:
        values = values / process_set.size()
    # What the engine delivers needs no check, and saying so keeps PyTorch from warning about it.
    return torch.sparse_coo_tensor(places.t(), values, shape, check_invariants=False)
