"""``DistributedOptimizer``: makes of a user's optimizer one that trains on all ranks together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ronde._basics import basics
from ronde._collectives import Adasum, Average
from ronde.process_sets import ProcessSet, global_process_set
from ronde.torch.adasum_optimizer import _DistributedAdasumOptimizer
from ronde.torch.arguments import check_adasum
from ronde.torch.compression import Compression, Compressor
from ronde.torch.distributed_optimizer import _DistributedOptimizer

__all__ = ["DistributedOptimizer", "_DistributedAdasumOptimizer", "_DistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimizer of the same class that reduces gradients over all ranks before each step.

    Gradients travel while the backward pass goes on, each as soon as it is complete. With ``torch.compile`` the
    gradients of one graph all become complete when that graph's backward has ended, so a model that is one graph
    exchanges after the backward pass and not during it; models compiled layer by layer keep the overlap.

    ``named_parameters`` gives the names by which ranks match gradients, as ``model.named_parameters()``.
    ``backward_passes_per_step`` is how many backward passes are added up before gradients travel. ``op`` is Average,
    Sum, Adasum, Min, Max or Product. ``gradient_predivide_factor`` f divides by f before adding up and by size / f
    after. ``groups`` is a number of groups, or lists of parameters, whose gradients travel together (``num_groups`` is
    its old name). ``sparse_as_dense`` sends sparse gradients as dense ones.

    A ``torch.amp.GradScaler`` may be used as with any optimizer: it sees reduced gradients, so all ranks skip the
    same steps.

    >>> import torch, horovod.torch as hvd
    >>> hvd.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    >>> isinstance(optimizer, torch.optim.SGD), type(optimizer).__name__
    (True, 'SGD')
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups:
        warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=2)
        groups = groups or num_groups
    if groups is not None:
        _check_groups(groups)
    size = basics.size()
    if op != Adasum or size == 1:
        wrapped = _class_of(optimizer, _DistributedOptimizer)(
            optimizer.param_groups,
            named_parameters,
            compression,
            backward_passes_per_step,
            op,
            gradient_predivide_factor,
            groups,
            sparse_as_dense,
            process_set,
        )
    else:
        check_adasum(process_set)
        wrapped = _class_of(optimizer, _DistributedAdasumOptimizer)(
            optimizer.param_groups, named_parameters, compression, backward_passes_per_step
        )
    # The groups above carry their options; these are for groups that are added later.
    wrapped.defaults.update(optimizer.defaults)
    return wrapped


def _class_of(optimizer: torch.optim.Optimizer, mixin: type[Any]) -> type[Any]:
    """Make a subclass of the optimizer's class, under the same name; of a wrapped optimizer, of what it wraps."""
    kind = getattr(optimizer, "_wrapped_class", type(optimizer))
    details = {"__doc__": kind.__doc__, "__module__": kind.__module__, "_wrapped_class": kind}
    return type(kind.__name__, (mixin, kind), details)


def _check_groups(groups: Any) -> None:
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return
    message = "groups should be a positive integer or a list of list of torch.Tensor"
    if not isinstance(groups, list):
        raise ValueError(message)
    for group in groups:
        if not isinstance(group, list) or not all(isinstance(member, torch.Tensor) for member in group):
            raise ValueError(message)
    members = [id(member) for group in groups for member in group]
    if len(set(members)) != len(members):
        raise ValueError("a tensor can only appear once in groups")
