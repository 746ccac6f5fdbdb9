"""Ranks come to the same state: parameters, optimizers, objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from models import assert_same_on_all_ranks, batches, loss_of, network
from together import on_ranks


def scattered(model: nn.Module) -> nn.Module:
    """Give the parameters values that differ between ranks."""
    for parameter in model.parameters():
        nn.init.constant_(parameter, float(hvd.rank()))
    return model


@on_ranks(2, 3)
def test_parameters_come_from_the_root_in_whatever_form_they_are_given() -> None:
    root = hvd.size() - 1
    forms: list[Any] = [
        lambda model: model.state_dict(),
        lambda model: model.named_parameters(),
        lambda model: list(model.named_parameters()),
        lambda model: list(model.parameters()),
        lambda model: model.parameters(),
        lambda model: iter(model.state_dict().items()),
    ]
    for form in forms:
        model = scattered(network())
        hvd.broadcast_parameters(form(model), root_rank=root)
        for parameter in model.parameters():
            assert parameter.unique().tolist() == [float(root)]
    model = nn.BatchNorm1d(2)
    model.num_batches_tracked.fill_(hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=root)
    assert model.num_batches_tracked.item() == root
    for wrong in (None, 5, torch.ones(2), "weights"):
        with pytest.raises(ValueError, match="invalid params"):
            hvd.broadcast_parameters(wrong, root_rank=0)
    with pytest.raises(ValueError, match="broadcast_object"):
        hvd.broadcast_parameters({"epoch": 3}, root_rank=0)


@on_ranks(3)
def test_parameters_of_a_process_set() -> None:
    pair = hvd.add_process_set([1, 2])
    model = scattered(network())
    if pair.included():
        hvd.broadcast_parameters(model.state_dict(), root_rank=2, process_set=pair)
        assert hvd.broadcast_object(hvd.rank(), 2, process_set=pair) == 2
        assert hvd.allgather_object(hvd.rank(), process_set=pair) == [1, 2]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.rank())
        hvd.broadcast_optimizer_state(optimizer, 2, process_set=pair)
        assert optimizer.param_groups[0]["lr"] == 0.2
    assert model[0].bias.unique().tolist() == [2.0 if pair.included() else 0.0]
    hvd.remove_process_set(pair)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"lr": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.1, "weight_decay": 0.5},
    "Adagrad": {"lr": 0.1},
    "Adadelta": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of(model, *batches()[0]).backward()
    optimizer.step()


@on_ranks(2)
def test_optimizer_state_comes_from_the_root() -> None:
    for name, options in OPTIMIZERS.items():
        model = network()
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        if hvd.rank() == 1:
            # Only the root has a state; the others have not taken a step.
            step(model, optimizer)
            optimizer.param_groups[0]["lr"] = 0.25
        before = [parameter.detach().clone() for parameter in model.parameters()]
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert all(torch.equal(*pair) for pair in zip(before, model.parameters())), name
        assert optimizer.param_groups[0]["lr"] == 0.25
        state = optimizer.state_dict()
        assert len(state["state"]) == 6
        for mine, theirs in zip(flat(state), flat(hvd.broadcast_object(state, 1))):
            assert type(mine) is type(theirs), name
            if isinstance(mine, torch.Tensor):
                assert mine.dtype == theirs.dtype
                assert torch.equal(mine, theirs), name
            else:
                assert mine == theirs, name
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        step(model, optimizer)
        assert_same_on_all_ranks(model)


def flat(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [item for key in sorted(state, key=str) for item in flat(state[key])]
    if isinstance(state, (list, tuple)):
        return [item for part in state for item in flat(part)]
    return [state]


@on_ranks(2)
def test_optimizer_state_that_only_others_have_is_dropped() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    if hvd.rank() == 1:
        step(model, optimizer)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.state_dict()["state"] == {}


@on_ranks(2)
def test_state_of_a_distributed_optimizer_and_of_one_that_is_refused() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1 + hvd.rank(), momentum=0.9), model.named_parameters()
    )
    step(model, optimizer)
    hvd.broadcast_optimizer_state(optimizer, 0, model)
    assert optimizer.param_groups[0]["lr"] == 0.1
    step(model, optimizer)
    hvd.broadcast_parameters(model.state_dict(), 0)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


@on_ranks(2, 3)
def test_objects_travel() -> None:
    root = hvd.size() - 1
    value = {"epoch": 3, "names": ["a", "ü"], "tensor": torch.arange(3)} if hvd.rank() == root else None
    found = hvd.broadcast_object(value, root)
    assert found["tensor"].tolist() == [0, 1, 2]
    assert (found["epoch"], found["names"]) == (3, ["a", "ü"])
    assert hvd.broadcast_object(value, root, name="named")["epoch"] == 3
    everybody = hvd.allgather_object("x" * 1000 * hvd.rank())
    assert [len(item) for item in everybody] == [1000 * rank for rank in range(hvd.size())]
    # A function of the main script cannot be pickled by name.
    assert hvd.broadcast_object(lambda x: x + 1, root)(1) == 2


@on_ranks(2)
def test_an_object_that_cannot_travel_does_not_keep_the_others_waiting() -> None:
    secret = (number for number in range(3))
    for exchange in (hvd.broadcast_object, hvd.allgather_object):
        if hvd.rank() == 0:
            with pytest.raises(TypeError, match="pickle"):
                exchange(secret)
        else:
            with pytest.raises(hvd.HorovodInternalError, match="pickle"):
                exchange(1)
    assert hvd.broadcast_object(hvd.rank(), name="afterwards") == 0
