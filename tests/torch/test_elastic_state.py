"""Elastic training: state that is saved, restored and taken over, and the loop that runs a training again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import horovod.torch as hvd
from horovod.common.elastic import HostUpdateResult, ObjectState, notification_manager, run_fn
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch.elastic import ElasticSampler, TorchState
from horovod.torch.elastic.state import StateHandler, get_handler_registry, set_handler_registry
from models import assert_same_on_all_ranks, batches, loss_of, network
from together import on_ranks


def trained() -> tuple[Any, Any]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    return model, optimizer


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    loss_of(model, *batches()[hvd.rank()]).backward()
    optimizer.step()


@on_ranks(2)
def test_restore_brings_back_what_was_committed() -> None:
    model, optimizer = trained()
    sampler = ElasticSampler(range(20))
    state = TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=1)
    weight = model[0].weight.detach().clone()
    buffers = optimizer.state_dict()["state"][0]["momentum_buffer"].clone()
    state.commit()
    step(model, optimizer)
    sampler.record_batch(0, 2)
    state.epoch = 2
    assert not torch.equal(model[0].weight, weight)
    for _ in range(2):
        state.restore()
        assert torch.equal(model[0].weight, weight)
        assert torch.equal(optimizer.state_dict()["state"][0]["momentum_buffer"], buffers)
        assert sampler.state_dict() == {"epoch": 0, "processed_num": 0}
        assert state.epoch == 1
        step(model, optimizer)
        state.epoch = 3


@on_ranks(2, 3)
def test_sync_takes_over_the_state_of_rank_0() -> None:
    model, optimizer = trained()
    sampler = ElasticSampler(range(20))
    if hvd.rank() == 0:
        sampler.record_batch(0, 3)
        optimizer.param_groups[0]["lr"] = 0.5
    state = TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=hvd.rank() + 7)
    state.sync()
    assert_same_on_all_ranks(model)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert sampler.processed_num == 3 * hvd.size()
    assert state.epoch == 7
    # What was taken over is saved as well.
    state.epoch = 100
    state.restore()
    assert state.epoch == 7


@on_ranks(2)
def test_another_object_in_place_of_a_handled_one() -> None:
    state = TorchState(model=network())
    replacement = network()
    with torch.no_grad():
        replacement[0].weight.fill_(1.0)
    state.model = replacement
    with torch.no_grad():
        replacement[0].weight.fill_(2.0)
    state.restore()
    assert state.model is replacement
    assert replacement[0].weight.unique().tolist() == [1.0]


@on_ranks(2)
def test_handlers_for_types_of_the_user() -> None:
    class Counter:
        """Counts."""

        count = 0

    class CounterHandler(StateHandler):
        """Saves a counter."""

        saved = 0

        def save(self) -> None:
            self.saved = self.value.count

        def restore(self) -> None:
            self.value.count = self.saved

        def sync(self) -> None:
            self.value.count = hvd.broadcast_object(self.value.count)

    before = get_handler_registry()
    set_handler_registry([*before, (Counter, CounterHandler)])
    try:
        counter = Counter()
        state = TorchState(counter=counter)
        counter.count = 5 + hvd.rank()
        state.commit()
        counter.count = 9
        state.restore()
        assert counter.count == 5 + hvd.rank()
        state.sync()
        assert counter.count == 5
    finally:
        set_handler_registry(before)


@on_ranks(2, 3)
def test_the_sampler_deals_what_is_left_to_the_ranks_there_are() -> None:
    rank, size = hvd.rank(), hvd.size()
    sampler = ElasticSampler(range(20), shuffle=False)
    padded = [number % 20 for number in range(-(-20 // size) * size)]
    assert list(sampler) == padded[rank::size]
    assert len(sampler) == len(padded) // size
    assert sampler.get_indices(1, 2) == padded[rank::size][2:4]
    sampler.record_batch(0, 2)
    assert list(sampler) == padded[rank::size]
    again = ElasticSampler(range(20), shuffle=False)
    again.load_state_dict(sampler.state_dict())
    left = list(range(2 * size, 20))
    assert sorted({number for part in hvd.allgather_object(list(again)) for number in part}) == left
    again.set_epoch(1)
    assert again.state_dict() == {"epoch": 1, "processed_num": 0}
    assert len(again) == len(padded) // size

    shuffled = ElasticSampler(range(20), seed=3)
    first = list(shuffled)
    shuffled.set_epoch(1)
    assert list(shuffled) != first
    shuffled.set_epoch(0)
    assert list(shuffled) == first
    # Fewer samples than ranks: some are dealt more than once.
    assert list(ElasticSampler(range(1))) == [0]


@on_ranks(2)
def test_a_commit_without_news_goes_on_and_with_news_interrupts_all_ranks() -> None:
    state = ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, batch=0)
    state.commit()
    notification_manager.register_listener(state)
    for stamp, (changes, skip_sync) in enumerate(
        [
            ([HostUpdateResult.removed], True),
            ([HostUpdateResult.added], False),
            ([HostUpdateResult.removed, HostUpdateResult.added], False),
        ]
    ):
        if hvd.rank() == 0:
            # Only rank 0 hears from the launcher.
            for change in changes:
                notification_manager.handle_hosts_updated(10 * stamp + change, change)
        with pytest.raises(HostsUpdatedInterrupt) as interrupt:
            state.commit()
        assert interrupt.value.skip_sync is skip_sync
        state.commit()
    notification_manager.remove_listener(state)
    notification_manager.handle_hosts_updated(1000, HostUpdateResult.added)
    state.check_host_updates()


@on_ranks(2)
def test_the_loop_restores_after_failures_and_keeps_the_state_after_changes() -> None:
    events: list[str] = []

    class Recorder(ObjectState):
        """Notes what is done to it."""

        def sync(self) -> None:
            events.append("sync")
            super().sync()

        def restore(self) -> None:
            events.append("restore")
            super().restore()

        def reset(self) -> None:
            events.append("reset")

    state = Recorder(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, turn=0)
    state.register_reset_callbacks([lambda: events.append("callback")])
    outcomes: list[Any] = [
        HorovodInternalError("a rank was lost"),
        # Only one rank thinks it lost nothing; the other needs the state.
        HostsUpdatedInterrupt(skip_sync=hvd.rank() == 0),
        HostsUpdatedInterrupt(skip_sync=True),
        "done",
    ]

    def train(found: Any, word: str) -> str:
        assert found is state
        events.append("train")
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return f"{outcome} {word}"

    assert run_fn(train, lambda: events.append("join anew"))(state, "indeed") == "done indeed"
    restored = "sync restore train restore join anew reset callback"
    kept = "sync restore train join anew reset callback"
    assert " ".join(events) == f"{restored} {kept} {kept} train".replace("sync restore", "sync restore")

    with pytest.raises(ZeroDivisionError):
        run_fn(lambda _: 1 / 0, lambda: None)(state)


@on_ranks(2)
def test_a_training_joins_anew_and_goes_on_from_the_last_commit() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    state = TorchState(model=model, optimizer=optimizer, step=0)
    failures = [4, 2]

    @hvd.elastic.run
    def train(state: TorchState) -> int:
        while state.step < 6:
            step(model, optimizer)
            state.step += 1
            if failures and state.step == failures[-1]:
                failures.pop()
                raise HorovodInternalError("as if a rank had been lost")
            state.commit()
        return hvd.size()

    assert train(state) == 2
    assert not failures
    plain = network()
    alone = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(6):
        alone.zero_grad()
        (sum(loss_of(plain, *batches()[rank]) for rank in range(2)) / 2).backward()
        alone.step()
    for mine, expected in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(mine, expected)
    # The checks after this one expect a job that takes new process sets.
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
