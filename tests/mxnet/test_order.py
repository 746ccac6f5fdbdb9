"""Collectives run in order with what MXNet computes, in the background, however many are in flight."""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import horovod.mxnet as hvd
from ranks import all_ranks_pass, launch
from together import on_ranks

FOLDERS = f"{Path(__file__).parent}:{Path(all_ranks_pass.__code__.co_filename).parent}"


@on_ranks(2, 3)
def test_a_chain_of_computations_and_collectives_without_waiting() -> None:
    value = mx.nd.full((64, 64), hvd.rank() + 1.0)
    expected = np.array([rank + 1.0 for rank in range(hvd.size())])
    for _ in range(50):
        value = value * 2 + 3
        hvd.allreduce_(value)
        value = value - hvd.rank()
        expected = np.full(hvd.size(), (expected * 2 + 3).mean()) - np.arange(hvd.size())
        # Far from overflow.
        value, expected = value / 4, expected / 4
    np.testing.assert_allclose(value.asnumpy(), np.full((64, 64), expected[hvd.rank()]), atol=1e-4)


@on_ranks(2, 3)
def test_an_argument_may_be_overwritten_and_dropped_right_after_the_call() -> None:
    results = []
    for number in range(20):
        array = mx.nd.full((1000,), number)
        results.append(hvd.allreduce(array, op=hvd.Sum))
        array[:] = -1
        del array
    for number, result in enumerate(results):
        assert (result.asnumpy() == number * hvd.size()).all()


@on_ranks(2)
def test_the_call_returns_while_the_other_rank_is_not_there() -> None:
    ones = mx.nd.ones(3)
    if hvd.rank() == 0:
        early = hvd.allreduce(ones, op=hvd.Sum, name="early")
        # Rank 1 starts only after this one has come so far, so the call above cannot have waited for it.
        hvd.allgather(ones, name="meeting")
    else:
        hvd.allgather(ones, name="meeting")
        early = hvd.allreduce(ones, op=hvd.Sum, name="early")
    assert early.asnumpy().tolist() == [2.0, 2.0, 2.0]


@on_ranks(4)
def test_two_hundred_in_flight_in_opposite_orders() -> None:
    names = list(range(200))
    random.Random(hvd.rank()).shuffle(names)
    if hvd.rank() < 2:
        names = sorted(names, reverse=hvd.rank() == 1)
    started = {}
    for name in names:
        array = mx.nd.full((name % 7 + 1,), hvd.rank() + name)
        if name % 3 == 0:
            started[name] = hvd.broadcast(array, name % 4, name=str(name), priority=-name)
        else:
            started[name] = hvd.allreduce(array, op=hvd.Sum, name=str(name), priority=name)
    for name, result in started.items():
        expected = name % 4 + name if name % 3 == 0 else 4 * name + 6
        assert result.asnumpy().tolist() == [expected] * (name % 7 + 1)


@on_ranks(2, 3)
def test_a_name_may_be_used_again_before_the_first_has_ended() -> None:
    results = []
    for step in range(30):
        value = mx.nd.full((100,), step)
        if step % 3 == hvd.rank():
            # Ready later than those that are called after it.
            for _ in range(5):
                value = mx.nd.dot(mx.nd.eye(100), value)
        results.append(hvd.allreduce(value, op=hvd.Sum, name="every step", priority=step))
    for step, result in enumerate(results):
        assert (result.asnumpy() == step * hvd.size()).all(), step


@on_ranks(2)
def test_threads_may_push_at_the_same_time() -> None:
    results: dict[int, float] = {}

    def work(number: int) -> None:
        value = mx.nd.full((10,), number)
        for turn in range(20):
            hvd.allreduce_(value, op=hvd.Sum, name=f"{number}.{turn}")
        results[number] = float(value.asnumpy()[0])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: float(number * hvd.size() ** 20) for number in range(4)}


def leaves_early() -> None:
    hvd.init()
    value = mx.nd.ones((400, 400))
    if hvd.rank() == 1:
        # Long enough that MXNet is still computing when the script has ended.
        for _ in range(30):
            value = mx.nd.dot(value, value) / 400
    result = hvd.allreduce(value, op=hvd.Sum, name="last")
    if hvd.rank() == 0:
        np.testing.assert_allclose(result.asnumpy(), 2.0, rtol=1e-3)


def test_a_script_may_end_before_mxnet_has_sent_its_part() -> None:
    all_ranks_pass(2, leaves_early, PYTHONPATH=FOLDERS)


def leaves_with_an_operation_that_nobody_shares() -> None:
    hvd.init()
    hvd.allreduce(mx.nd.ones(2), name=f"only rank {hvd.rank()} has this")


def test_an_operation_that_never_comes_about_does_not_keep_a_rank_for_ever() -> None:
    call = (
        "import ronde.mxnet.engine as engine; engine._PATIENCE_SECONDS = 0.5; "
        "from test_order import leaves_with_an_operation_that_nobody_shares as program; program()"
    )
    done = launch(2, [sys.executable, "-c", call], 60.0, PYTHONPATH=FOLDERS)
    assert done.status == 0, done.output


def runs_each_operation_where_it_is_pushed() -> None:
    hvd.init()
    ones = mx.nd.ones(3)
    assert hvd.allreduce(ones * 2, op=hvd.Sum).asnumpy().tolist() == [4.0, 4.0, 4.0]
    with pytest.raises(mx.MXNetError, match=r"(?s)bad.*\(3\).*\(4\)"):
        hvd.allreduce(mx.nd.ones(3 + hvd.rank()), name="bad")
    assert hvd.allreduce_(ones, op=hvd.Sum).asnumpy().tolist() == [2.0, 2.0, 2.0]


def test_mxnets_naive_engine() -> None:
    variables = {"MXNET_ENGINE_TYPE": "NaiveEngine", "PYTHONPATH": FOLDERS}
    all_ranks_pass(2, runs_each_operation_where_it_is_pushed, **variables)
