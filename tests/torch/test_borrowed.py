"""What other packages borrow: data loaders, questions about the build, small functions."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from horovod.common import util
from horovod.common.exceptions import HorovodVersionMismatchError
from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from ronde._basics import basics


class Numbers(BaseDataLoader):
    """Yields numbers, and notes how far it has come."""

    def __init__(self, count: int = 5, fail_at: int | None = None) -> None:
        self.count, self.fail_at, self.made = count, fail_at, 0

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        for number in range(self.count):
            if number == self.fail_at:
                raise OSError("the disk is gone")
            self.made += 1
            yield number

    def _process_batch(self, batch: Any) -> Any:
        return batch * 10


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    """The same, in a thread."""


@pytest.mark.parametrize("loader", [Numbers(), AsyncNumbers(), AsyncNumbers(1), AsyncNumbers(0), AsyncNumbers(2, True)])
def test_loaders_yield_every_batch_each_time(loader: Any) -> None:
    assert len(loader) == 5
    for _ in range(2):
        assert list(loader) == [0, 10, 20, 30, 40]


def test_a_thread_runs_ahead_as_far_as_the_queue_has_room() -> None:
    loader = AsyncNumbers(2, count=100)
    iterator = iter(loader)
    assert next(iterator) == 0
    while loader.made < 4:
        # One was taken, two wait in the queue, one waits for room.
        time.sleep(0.001)  # sleep: between two looks
    assert loader.made == 4
    iterator.close()
    assert [thread for thread in threading.enumerate() if thread.name == "ronde-data-loader"] == []
    # A loader that was left in the middle can be used again.
    assert len(list(loader)) == 100
    loader.close_async_loader()


def test_an_error_of_the_thread_is_raised_where_the_batch_is_wanted() -> None:
    batches = iter(AsyncNumbers(count=5, fail_at=3))
    assert [next(batches) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(OSError, match="disk is gone"):
        next(batches)


def test_variables_are_set_for_a_block() -> None:
    os.environ["RONDE_TEST_THERE"] = "before"
    with util.env(RONDE_TEST_THERE=None, RONDE_TEST_NEW="1"):
        assert "RONDE_TEST_THERE" not in os.environ
        assert os.environ["RONDE_TEST_NEW"] == "1"
    assert os.environ.pop("RONDE_TEST_THERE") == "before"
    assert "RONDE_TEST_NEW" not in os.environ


def test_questions_about_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert util.extension_available("torch", verbose=True)
    assert "torch was found" in capsys.readouterr().out
    assert not util.extension_available("no_such_framework")
    assert (util.gloo_built(), util.mpi_built(verbose=True)) == (True, False)
    assert (util.ddl_built(), util.ccl_built(), util.gpu_available("no_such_framework")) == (False, False, False)
    # What the machine has.
    assert util.nccl_built() == (basics.nccl_built() > 0)
    assert util.gpu_available("torch") == basics.cuda_built()


def test_small_functions() -> None:
    assert util.split_list([1, 2, 3, 4, 5, 6, 7], 3) == [[1, 2, 3], [4, 5], [6, 7]]
    assert [util.num_rank_is_power_2(number) for number in (0, 1, 2, 3, 4, 6)] == [
        False,
        True,
        True,
        False,
        True,
        False,
    ]
    with pytest.raises(HorovodVersionMismatchError, match=r"torch 0\.1 was asked for"):
        util.check_installed_version("torch", "0.1")
