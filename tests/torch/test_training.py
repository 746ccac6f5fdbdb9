"""Training with several ranks is training with one process that sees the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from models import (
    assert_same,
    assert_same_on_all_ranks,
    batches,
    loss_of,
    network,
    own_part,
    train_alone,
    train_together,
)
from ronde.torch import handles
from together import on_ranks


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9, weight_decay=0.01)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [momentum, adam]


@on_ranks(2, 3, 4)
def test_losses_and_weights_are_those_of_one_process() -> None:
    for make in OPTIMIZERS:
        together = train_together(make)
        assert_same(together, train_alone(make))
        assert_same_on_all_ranks(together)


@on_ranks(2, 3)
def test_sum_is_a_loss_as_many_times_as_large() -> None:
    plain = train_alone(momentum, scale=hvd.size())
    assert_same(train_together(momentum, op=hvd.Sum), plain)


@on_ranks(2, 3)
def test_groups_and_predivision_change_nothing() -> None:
    plain = train_alone(momentum)
    for options in (
        {"groups": 2},
        {"groups": 100},
        {"num_groups": 3},
        {"groups": lambda model: [[model[0].weight, model[4].bias], [model[2].weight]]},
        {"gradient_predivide_factor": 4.0},
        {"gradient_predivide_factor": 4.0, "groups": 2},
    ):
        assert_same(train_together(momentum, **options), plain)


@on_ranks(2)
def test_predivision_is_applied_before_the_sum() -> None:
    # The sum of two of these overflows; halves of them do not, and the factor 2 afterwards is undone by the average.
    large = 2.0**127
    for groups in (None, 1):
        weight = nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), gradient_predivide_factor=2.0, groups=groups
        )
        weight.grad = None
        (weight * large).sum().backward()
        optimizer.synchronize()
        assert weight.grad is not None
        assert weight.grad.tolist() == [large, large]


@on_ranks(2, 3)
def test_compression_trains_nearly_the_same() -> None:
    plain = train_alone(momentum)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        for groups in (None, 2):
            together = train_together(momentum, compression=compression, groups=groups)
            assert_same(together, plain, tolerance=0.05)
            assert_same_on_all_ranks(together)
            # That the exchange was compressed shows in what is lost.
            with pytest.raises(AssertionError):
                assert_same(together, plain)


@on_ranks(2)
def test_a_compressor_of_the_user() -> None:
    calls = []

    class Halves(hvd.Compression.none):
        """Sends halves."""

        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
            calls.append("compress")
            return tensor / 2, tensor.shape

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
            assert tensor.shape == ctx
            return tensor * 2

    assert_same(train_together(momentum, compression=Halves), train_alone(momentum))
    assert calls


@on_ranks(2, 3)
def test_gradients_of_several_passes_are_added_up_before_they_travel() -> None:
    for groups in (None, 2):
        model = network()
        optimizer = hvd.DistributedOptimizer(
            momentum(model.parameters()), model.named_parameters(), backward_passes_per_step=2, groups=groups
        )
        for inputs, targets in batches():
            optimizer.zero_grad()
            for part in range(2):
                rows, wanted = own_part(inputs).chunk(2)[part], own_part(targets).chunk(2)[part]
                (loss_of(model, rows, wanted) * len(rows) / len(own_part(inputs))).backward()
            optimizer.step()
        assert_same(model, train_alone(momentum))
    optimizer.set_backward_passes_per_step(1)
    assert optimizer.backward_passes_per_step == 1
    inputs, targets = batches()[0]
    optimizer.zero_grad()
    loss_of(model, own_part(inputs), own_part(targets)).backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss_of(model, own_part(inputs), own_part(targets)).backward()
    optimizer.step()


@on_ranks(3)
def test_a_process_set_trains_alone() -> None:
    pair = hvd.add_process_set([0, 2])
    model = network()
    optimizer = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), process_set=pair)
    for inputs, targets in batches():
        optimizer.zero_grad()
        place = pair.rank() if pair.included() else None
        rows, wanted = (
            (own_part(inputs, place, 2), own_part(targets, place, 2)) if place is not None else (inputs, targets)
        )
        loss_of(model, rows, wanted).backward()
        optimizer.step()
    # The pair shares the batch; rank 1, which is not in it, has all of it.
    assert_same(model, train_alone(momentum))
    hvd.remove_process_set(pair)


@on_ranks(2)
def test_gradients_travel_while_backward_goes_on() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    started = []

    inputs, targets = batches()[0]
    hidden = model[1](model[0](own_part(inputs)))
    hidden.register_hook(lambda _: started.append(optimizer._in_flight))
    nn.functional.cross_entropy(model[4](model[3](model[2](hidden))), own_part(targets)).backward()
    # The four parameters of the last two layers were sent before the first layer's gradients existed.
    assert started == [4]
    assert optimizer._in_flight == 6
    optimizer.step()
    assert optimizer._in_flight == 0


@on_ranks(2)
def test_it_is_the_users_optimizer() -> None:
    model = network()
    plain = torch.optim.Adam(model.parameters(), lr=0.05, betas=(0.8, 0.9))
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    assert type(optimizer).__name__ == "Adam"
    assert isinstance(optimizer, hvd_optimizer_class())
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert optimizer.state_dict()["state"] == {}
    assert (optimizer.backward_passes_per_step, optimizer.op) == (1, hvd.Average)
    assert (optimizer.gradient_predivide_factor, optimizer.sparse_as_dense) == (1.0, False)
    assert optimizer.process_set is hvd.global_process_set
    # Wrapping once more wraps the same optimizer class.
    assert type(hvd.DistributedOptimizer(optimizer)).__mro__[2:] == type(optimizer).__mro__[2:]


def hvd_optimizer_class() -> type:
    from horovod.torch.optimizer import _DistributedOptimizer

    return _DistributedOptimizer


@on_ranks(2)
def test_state_goes_to_a_plain_optimizer_and_back() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.05)

    model = train_together(make, steps=3)
    model, plain = network(), None
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    for inputs, targets in batches(2):
        optimizer.zero_grad()
        loss_of(model, own_part(inputs), own_part(targets)).backward()
        optimizer.step()
    plain = make(model.parameters())
    plain.load_state_dict(optimizer.state_dict())
    again = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    again.load_state_dict(plain.state_dict())
    for inputs, targets in batches()[2:]:
        again.zero_grad()
        loss_of(model, own_part(inputs), own_part(targets)).backward()
        again.step()
    assert_same(model, train_alone(make))


@on_ranks(2)
def test_loading_a_state_forgets_what_is_under_way() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    inputs, targets = batches()[0]
    loss_of(model, own_part(inputs), own_part(targets)).backward()
    assert optimizer._in_flight
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    # What nobody waits for goes on all the same, and its names are free afterwards.
    handles.synchronize_all(handles.pending())
    loss_of(model, own_part(inputs), own_part(targets)).backward()
    optimizer.step()


@on_ranks(2)
def test_zero_grad_takes_the_arguments_of_the_wrapped_optimizer() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    inputs, targets = batches()[0]
    loss_of(model, own_part(inputs), own_part(targets)).backward()
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())
    optimizer.zero_grad(set_to_none=True)
    assert all(parameter.grad is None for parameter in model.parameters())


@on_ranks(2)
def test_gradients_can_be_changed_between_synchronize_and_step() -> None:
    model, plain = network(), network()
    make = torch.optim.SGD
    optimizer = hvd.DistributedOptimizer(make(model.parameters(), lr=0.2), model.named_parameters())
    alone = make(plain.parameters(), lr=0.2)
    for inputs, targets in batches():
        optimizer.zero_grad()
        loss_of(model, own_part(inputs), own_part(targets)).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        alone.zero_grad()
        loss_of(plain, inputs, targets).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        alone.step()
    assert_same(model, plain)
    loss_of(model, *batches()[0]).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


@on_ranks(2)
def test_a_closure_computes_gradients_that_are_reduced() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    for inputs, targets in batches():

        def closure(inputs: torch.Tensor = inputs, targets: torch.Tensor = targets) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, own_part(inputs), own_part(targets))
            loss.backward()
            return loss

        assert optimizer.step(closure) > 0
    assert_same(model, train_alone(momentum))


@on_ranks(2)
def test_hooks_of_the_optimizer_run_once_and_see_reduced_gradients() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(weight.grad.item()))  # type: ignore[union-attr]
    (weight * (hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    assert seen == [1.5]


@on_ranks(2)
def test_learning_rate_schedules_work_as_with_the_plain_optimizer() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for expected in (-1.5, -2.25):
        optimizer.zero_grad()
        (weight * (hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
        schedule.step()
        assert weight.item() == expected


@on_ranks(2)
def test_wrong_arguments_are_refused() -> None:
    model = network()

    def wrap(**options: Any) -> None:
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)

    pairs = list(model.named_parameters())
    for options, message in (
        ({"named_parameters": [parameter for _, parameter in pairs]}, "sequence of tuples"),
        ({"named_parameters": [("same", parameter) for _, parameter in pairs]}, "unique"),
        ({"named_parameters": pairs[1:]}, "not named"),
        ({"named_parameters": []}, "not named"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "gradient_predivide_factor"),
        ({"groups": 0}, "groups"),
        ({"groups": "two"}, "groups"),
        ({"groups": [model[0].weight]}, "groups"),
        ({"groups": [[model[0].weight], [model[0].weight]]}, "only appear once"),
    ):
        with pytest.raises(ValueError, match=message):
            wrap(**options)


@on_ranks(2, 4)
def test_adasum_combines_the_steps_of_the_ranks() -> None:
    """Equal ranks take one step, ranks that change different weights all their steps."""
    for same in (True, False):
        model = nn.Linear(4, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), op=hvd.Adasum
        )
        assert isinstance(optimizer, torch.optim.SGD)
        inputs = torch.zeros(4, dtype=torch.float64)
        inputs[0 if same else hvd.rank()] = 1.0
        model(inputs).backward()
        with pytest.raises(AssertionError, match="race condition"):
            optimizer.zero_grad()
        optimizer.synchronize()
        optimizer.step()
        moved = 1 if same else hvd.size()
        assert model.weight.detach().squeeze().tolist() == [-0.5] * moved + [0.0] * (4 - moved)
        optimizer.zero_grad()
        with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
            pass
        # A parameter that no rank has a gradient for stays where it is.
        optimizer.step()
        assert model.weight.detach().squeeze().tolist() == [-0.5] * moved + [0.0] * (4 - moved)
