"""NCCL that fails, or never ends, on one of four ranks: all of them raise, and the GPU goes on working.

NCCL itself cannot be made to fail on demand, and refuses ranks that share a GPU. So the library that stands in for it
(``crates/test-nccl``) does it: ``RONDE_TEST_NCCL`` says what goes wrong, at which call, on which rank.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import torch

import horovod.torch as hvd
from ranks import Finished, launch, search_path

HERE = Path(__file__).parent
RANKS = 4
# Long enough for a busy machine; a rank that waits for ever is what would be found.
SECONDS = 60.0


def sums_until_it_fails() -> None:
    """Repeat a sum until it raises, use the GPU, and write down what was said."""
    # The launcher stops the others once one has ended; they want to see the error first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hvd.init()
    tensor = torch.ones(1 << 20, device="cuda")
    leaves = os.environ.get("LEAVES") == str(hvd.rank())
    for turn in range(100_000):
        if leaves and turn == 3:
            # Whatever hangs on this rank's GPU must not keep its process, either.
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.allreduce_(tensor, name="again", op=hvd.Sum)
            # Where nothing fails here, results are not looked at: what hangs on the device would hold us, too.
        except hvd.HorovodInternalError as error:
            torch.cuda.synchronize()
            works = torch.arange(1000, device="cuda").sum().item() == 499_500
            Path(os.environ["FOLDER"], str(hvd.rank())).write_text(f"{works} {error}")
            raise
    raise AssertionError("nothing failed")


def told(orders: str, **variables: str) -> tuple[dict[int, str], Finished]:
    """Run four ranks with these orders, and return what each was told, once it had used the GPU again."""
    library = os.environ.get("RONDE_TEST_NCCL_LIBRARY")
    assert library, "name libronde_test_nccl.so with --nccl; cargo build --release -p ronde-test-nccl makes it"
    with tempfile.TemporaryDirectory() as folder:
        done = launch(
            RANKS,
            [sys.executable, "-c", "from test_nccl_faults import sums_until_it_fails as run; run()"],
            SECONDS,
            FOLDER=folder,
            PYTHONPATH=search_path(HERE, HERE.parent / "python"),
            RONDE_GPU_PATH="nccl",
            RONDE_NCCL_LIBRARY=library,
            RONDE_TEST_NCCL=orders,
            **variables,
        )
        messages = {}
        for file in Path(folder).iterdir():
            works, _, message = file.read_text().partition(" ")
            assert works == "True", f"rank {file.name} cannot use the GPU any more\n{done.output}"
            messages[int(file.name)] = message
    assert done.status != 0, done.output
    return messages, done


def test_a_call_that_fails_on_one_rank_fails_on_all_with_its_name() -> None:
    messages, done = told("error@2:2")
    assert messages.keys() == {*range(RANKS)}, done.output
    for message in messages.values():
        assert "rank 2" in message, message
        assert "system error" in message, message


def test_a_communicator_that_cannot_be_made_is_said_on_all() -> None:
    messages, done = told("error@0:2")
    assert messages.keys() == {*range(RANKS)}, done.output
    assert all("system error" in message for message in messages.values()), messages


def test_a_failure_on_the_device_is_noticed_by_all() -> None:
    messages, done = told("async@2:1")
    assert messages.keys() == {*range(RANKS)}, done.output
    assert all("rank 1" in message for message in messages.values()), messages


def test_work_that_hangs_ends_when_a_rank_is_lost() -> None:
    messages, done = told("hang@2", LEAVES="3")
    assert messages.keys() == {0, 1, 2}, done.output
    assert all("rank 3" in message for message in messages.values()), messages
