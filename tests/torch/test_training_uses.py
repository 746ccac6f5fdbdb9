"""Training as people do it: mixed precision, compiled models, sparse gradients, frozen layers, loaders, threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd
from horovod.torch import sparse_allreduce_async as sparse
from models import ROWS, assert_same, assert_same_on_all_ranks, batches, loss_of, network, own_part, train_alone
from prepare import DEVICE
from together import on_ranks


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def scaler() -> Any:
    """Return a GradScaler that works on the CPU, or on the device that is tested.

    PyTorch before 2.3 has only one for CUDA, which switches itself off without a GPU. Its parts that work on gradients
    run on any device, so there they are used directly, with the scale in the CPU's memory.
    """
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, growth_interval=1000)

    class OnCpu(torch.cuda.amp.GradScaler):
        """Enabled without CUDA."""

        def __init__(self) -> None:
            super().__init__(init_scale=1024.0, growth_interval=1000, enabled=False)
            self._enabled = True
            self._init_scale, self._growth_factor, self._backoff_factor = 1024.0, 2.0, 0.5
            self._growth_interval, self._init_growth_tracker = 1000, 0
            self._growth_tracker = None
            self._per_optimizer_states = __import__("collections").defaultdict(_fresh_state)
            self._scale = torch.full((), 1024.0)

        def scale(self, outputs: Tensor) -> Tensor:
            """Scale a loss."""
            self._growth_tracker = torch.zeros((), dtype=torch.int32)
            return outputs * self._scale

        def _unscale_grads_(self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Any:
            del allow_fp16
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(inv_scale)
                        found_inf.logical_or_(~parameter.grad.isfinite().all())
            return {found_inf.device: found_inf}

        def update(self, new_scale: Any = None) -> None:
            """Shrink the scale after an infinity."""
            del new_scale
            for state in self._per_optimizer_states.values():
                if any(found.item() for found in state["found_inf_per_device"].values()):
                    self._scale.mul_(0.5)
            self._per_optimizer_states.clear()

        def get_scale(self) -> float:
            """Return the scale."""
            return self._scale.item()

    return OnCpu()


def _fresh_state() -> dict[str, Any]:
    from torch.cuda.amp.grad_scaler import OptState

    return {"stage": OptState.READY, "found_inf_per_device": {}}


def naive(optimizer: Any, scale: Any, backward: Callable[[], None]) -> None:
    """Use a scaler as its documentation shows."""
    backward()
    scale.step(optimizer)
    scale.update()


def clipping(optimizer: Any, scale: Any, backward: Callable[[], None]) -> None:
    """Unscale first, as one does to clip gradients."""
    backward()
    scale.unscale_(optimizer)
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1e9)
    scale.step(optimizer)
    scale.update()


def horovods_recipe(optimizer: Any, scale: Any, backward: Callable[[], None]) -> None:
    """Use a scaler as Horovod's documentation shows."""
    backward()
    optimizer.synchronize()
    scale.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scale.step(optimizer)
    scale.update()


@on_ranks(2)
def test_a_scaler_skips_the_same_steps_on_all_ranks() -> None:
    for recipe in (naive, clipping, horovods_recipe):
        model, plain = network(), network()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        alone = sgd(plain.parameters())
        scale = scaler()
        for step, (inputs, targets) in enumerate(batches()):
            optimizer.zero_grad()
            broken = step == 2

            def backward() -> None:
                loss = loss_of(model, own_part(inputs), own_part(targets))  # noqa: B023
                if broken and hvd.rank() == 0:  # noqa: B023
                    loss = loss * float("inf")
                scale.scale(loss).backward()  # noqa: B023

            before = [parameter.detach().clone() for parameter in model.parameters()]
            recipe(optimizer, scale, backward)
            if broken:
                # One rank's infinity is everybody's: nobody moves, and all scales shrink.
                assert all(torch.equal(*pair) for pair in zip(before, model.parameters()))
            else:
                alone.zero_grad()
                loss_of(plain, inputs, targets).backward()
                alone.step()
        assert scale.get_scale() == 512.0
        assert_same(model, plain)
        assert_same_on_all_ranks(model)


def cannot_compile() -> bool:
    """Tell whether this PyTorch compiles nothing with this Python, which is so for 2.0 and Python 3.11."""
    if not torch.__version__.startswith("2.0.") or sys.version_info < (3, 11):
        return False
    with pytest.raises(RuntimeError, match=r"Python 3\.11"):
        torch.compile(lambda x: x)
    return True


@on_ranks(2)
def test_compiled_models_train_the_same() -> None:
    if cannot_compile():
        return
    plain = train_alone(sgd)
    for compile_first in (True, False):
        model = network()
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager") if compile_first else None
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        compiled = compiled or torch.compile(model, backend="aot_eager")
        for inputs, targets in batches():
            optimizer.zero_grad()
            loss_of(compiled, own_part(inputs), own_part(targets)).backward()
            assert optimizer._in_flight == 6
            optimizer.step()
        assert_same(model, plain)


@on_ranks(2)
def test_operations_are_calls_between_graphs_of_a_compiled_function() -> None:
    if cannot_compile():
        return
    import torch._dynamo

    torch._dynamo.reset()
    graphs: list[list[str]] = []

    def record(graph: Any, _: Any) -> Any:
        graphs.append([node.name for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    @torch.compile(backend=record)
    def function(x: Tensor, name: str) -> Tensor:
        y = hvd.allreduce(x * 2, op=hvd.Sum, name=name)
        return y + hvd.allgather(x).sum()

    for turn in range(4):
        x = torch.full((3,), float(turn + hvd.rank()), requires_grad=True)
        result = function(x, f"compiled {turn}")
        total = 2.0 * turn + 1
        assert result.tolist() == [2 * total + 3 * total] * 3
        result.sum().backward()
        # Two, by the sum over two ranks, times two; and three elements times the average of ones.
        assert x.grad is not None
        assert x.grad.tolist() == [4.0 + 3.0] * 3
    # Before, between and after the operations, and nothing from inside them.
    assert {name for graph in graphs for name in graph} <= {"mul", "sum_1", "add", "y"}, graphs


class Words(nn.Module):
    """An embedding with sparse gradients, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(20, 4, sparse=True)
        self.out = nn.Linear(4, 2)

    def forward(self, numbers: Tensor) -> Tensor:
        """Judge words."""
        return self.out(self.words(numbers))


def word_batches() -> list[Tensor]:
    generator = torch.Generator("cpu").manual_seed(5)
    return [torch.randint(0, 20, (ROWS,), generator=generator, device="cpu").to(DEVICE) for _ in range(5)]


@on_ranks(2, 3)
def test_sparse_gradients_as_they_are_and_as_dense_ones() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5)

    plain = Words()
    alone = make(plain.parameters())
    for numbers in word_batches():
        alone.zero_grad()
        plain(numbers).square().mean().backward()
        alone.step()
    for sparse_as_dense in (False, True):
        for groups in (None, 1):
            model = Words()
            optimizer = hvd.DistributedOptimizer(
                make(model.parameters()), model.named_parameters(), sparse_as_dense=sparse_as_dense, groups=groups
            )
            for numbers in word_batches():
                optimizer.zero_grad()
                with mock.patch("ronde.torch.distributed_optimizer.sparse_allreduce_async", wraps=sparse) as exchange:
                    model(own_part(numbers)).square().mean().backward()
                assert exchange.called is not sparse_as_dense
                optimizer.synchronize()
                assert model.words.weight.grad is not None
                assert model.words.weight.grad.is_sparse
                with optimizer.skip_synchronize():
                    optimizer.step()
            assert_same(model, plain, tolerance=1e-5)


@on_ranks(2)
def test_a_rank_without_sparse_gradients_in_some_step_takes_part() -> None:
    for sparse_as_dense in (False, True):
        model = Words()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), sparse_as_dense=sparse_as_dense
        )
        for step, numbers in enumerate(word_batches()):
            optimizer.zero_grad()
            if step % 2 and hvd.rank() == 1:
                model.out(torch.ones(1, 4)).sum().backward()
            else:
                model(own_part(numbers)).square().mean().backward()
            optimizer.step()
        assert_same_on_all_ranks(model)


class Branches(nn.Module):
    """Uses one of two layers, or neither."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second, self.unused = nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: Tensor, first: bool) -> Tensor:
        """Apply a layer."""
        return self.first(x) if first else self.second(x)


@on_ranks(2, 3)
def test_parameters_that_only_some_ranks_use() -> None:
    for groups in (None, 2):
        model = Branches()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), groups=groups)
        for step in range(4):
            optimizer.zero_grad()
            first = (hvd.rank() + step) % 2 == 0
            model(torch.ones(2, 3), first).sum().backward()
            # What this rank does not use counts as zeros, so it must not keep the others waiting.
            optimizer.step()
            users = sum((rank + step) % 2 == 0 for rank in range(hvd.size()))
            assert model.first.bias.grad is not None
            torch.testing.assert_close(model.first.bias.grad, torch.tensor([2.0 * users / hvd.size()]))
            assert model.unused.bias.grad is not None
            assert model.unused.bias.grad.tolist() == [0.0]
        assert_same_on_all_ranks(model)


@on_ranks(2)
def test_frozen_parameters_stay_and_may_thaw() -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    frozen = model[0].weight.detach().clone()
    plain = network()
    alone = sgd(plain.parameters())
    plain[0].requires_grad_(False)
    for step, (inputs, targets) in enumerate(batches()):
        if step == 2:
            assert torch.equal(model[0].weight, frozen)
            for thawed in (model, plain):
                thawed[0].requires_grad_(True)
        if step == 4:
            for refrozen in (model, plain):
                refrozen[2].requires_grad_(False)
                refrozen[2].zero_grad(set_to_none=True)
        for part, trained in ((own_part, optimizer), (lambda t: t, alone)):
            trained.zero_grad()
            loss_of(model if trained is optimizer else plain, part(inputs), part(targets)).backward()
            trained.step()
        assert_same(model, plain)


@on_ranks(2)
def test_parameters_added_later_are_reduced_as_well() -> None:
    model, plain = network(), network()
    optimizer = hvd.DistributedOptimizer(sgd(model[2:].parameters()))
    alone = sgd(plain[2:].parameters())
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.05})
    alone.add_param_group({"params": plain[0].parameters(), "lr": 0.05})
    for inputs, targets in batches():
        optimizer.zero_grad()
        loss_of(model, own_part(inputs), own_part(targets)).backward()
        optimizer.step()
        alone.zero_grad()
        loss_of(plain, inputs, targets).backward()
        alone.step()
    assert_same(model, plain)


@on_ranks(2)
def test_several_optimizers_at_once() -> None:
    """Two unnamed ones and two with the same names, all with gradients under way at the same time."""
    models = [network() for _ in range(4)]
    optimizers = [
        hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters() if number > 1 else None)
        for number, model in enumerate(models)
    ]
    for inputs, targets in batches():
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            loss_of(model, own_part(inputs), own_part(targets)).backward()
        for optimizer in reversed(optimizers):
            optimizer.step()
    plain = train_alone(sgd)
    for model in models:
        assert_same(model, plain)


@on_ranks(2)
def test_wrapping_again_takes_the_parameters_over() -> None:
    model = network()
    first = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    second = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), op=hvd.Sum)
    loss_of(model, *batches()[0]).backward()
    assert first._in_flight == 0
    second.synchronize()
    plain = network()
    loss_of(plain, *batches()[0]).backward()
    for mine, expected in zip(model.parameters(), plain.parameters()):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, expected.grad * 2)  # type: ignore[operator]


@on_ranks(2)
def test_a_shared_parameter_is_reduced_once() -> None:
    weight = nn.Parameter(torch.ones(2))
    named = [("one", weight), ("other", weight)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), named, op=hvd.Sum)
    (weight + 2 * weight).sum().backward()
    optimizer.synchronize()
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0, 6.0]


@on_ranks(2)
def test_gradients_in_channels_last_order() -> None:
    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    together, plain = model(), model()
    images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    images = hvd.broadcast(images, 0)
    optimizer = hvd.DistributedOptimizer(sgd(together.parameters()), together.named_parameters())
    alone = sgd(plain.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        together(own_part(images)).square().mean().backward()
        optimizer.step()
        alone.zero_grad()
        plain(images).square().mean().backward()
        alone.step()
    assert_same(together, plain, tolerance=1e-5)


@on_ranks(2)
def test_loaders_that_fork_workers_while_training() -> None:
    # Workers that are forked cannot use a GPU.
    whole = [torch.cat(parts).cpu() for parts in zip(*batches())]
    data = torch.utils.data.TensorDataset(*whole)
    sampler = torch.utils.data.distributed.DistributedSampler(
        data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    loader = torch.utils.data.DataLoader(data, batch_size=3, sampler=sampler, num_workers=2)
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    seen = 0
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_of(model, inputs.to(DEVICE), targets.to(DEVICE)).backward()
            optimizer.step()
            seen += len(inputs)
    assert seen == len(data)
    assert_same_on_all_ranks(model)


@on_ranks(2, 3)
def test_threads_use_operations_and_optimizers_at_once() -> None:
    plain = train_alone(sgd)
    failures: list[BaseException] = []
    # Made here, in the same order on every rank: that is what the names of optimizers go by.
    models = [network() for _ in range(3)]
    optimizers = [hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters()) for model in models]

    def train(number: int) -> None:
        try:
            for step, (inputs, targets) in enumerate(batches()):
                optimizers[number].zero_grad()
                loss_of(models[number], own_part(inputs), own_part(targets)).backward()
                found = hvd.allreduce(torch.tensor(1.0), name=f"thread {number} step {step}", op=hvd.Sum)
                assert found.item() == hvd.size()
                optimizers[number].step()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for model in models:
        assert_same(model, plain)


@on_ranks(2)
def test_ranks_that_disagree_about_a_gradient_all_hear_it_and_can_go_on() -> None:
    for op in (hvd.Average, hvd.Adasum):
        uneven, even = nn.Parameter(torch.zeros(2 + hvd.rank())), nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([uneven, even], lr=1.0), [("uneven", uneven), ("even", even)], op=op
        )
        for _ in range(2):
            (uneven.sum() + even.sum()).backward()
            with pytest.raises(hvd.HorovodInternalError, match="uneven"):
                optimizer.step()
            optimizer.zero_grad()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
