"""Streams wait for each other, and the host for none of them."""

from __future__ import annotations

import time

import torch

import horovod.torch as hvd
from gate import passed, rehearsed
from ronde import _core
from ronde.torch import memory
from together import on_ranks

ELEMENTS = 1 << 20


def full(value: float) -> torch.Tensor:
    return torch.full((ELEMENTS,), value, device="cuda")


def total() -> float:
    """Return 1 + 2 + ... + size, which is what the ranks add up to."""
    return hvd.size() * (hvd.size() + 1) / 2


def until_over(handle: int) -> None:
    """Wait, by asking, until an operation is over on the device."""
    deadline = time.monotonic() + 60
    while not hvd.poll(handle):
        assert time.monotonic() < deadline, "the operation does not end"


@on_ranks(1, 2, 4)
def test_neither_submitting_nor_synchronizing_waits_for_the_device() -> None:
    for gate in rehearsed():
        with gate:
            mine = full(0.0)
            mine += hvd.rank() + 1.0
            made = passed()
            handle = hvd.allreduce_async_(mine, name="gated", op=hvd.Sum)
            assert gate.holds(made), "starting the operation waited for the tensor"
            result = hvd.synchronize(handle)
            assert result is mine
            # Work on the result can be given to the stream, long before there is a result.
            doubled = result * 2
            done = passed()
            assert gate.holds(done), "synchronize waited for the device"
            gate.open()
            done.synchronize()
            assert torch.equal(doubled, full(2 * total()))


@on_ranks(2, 4)
def test_one_rank_may_be_late_on_the_device_and_no_host_waits() -> None:
    rank, late = hvd.rank(), hvd.size() - 1
    for gate in rehearsed():
        if rank == late:
            with gate:
                result = hvd.allreduce(full(rank + 1.0), name="one late", op=hvd.Sum)
                done = passed()
                # Reached by all ranks although this one's tensor is not there yet.
                hvd.barrier()
                assert gate.holds(done)
                gate.open()
        else:
            result = hvd.allreduce(full(rank + 1.0), name="one late", op=hvd.Sum)
            hvd.barrier()
        assert torch.equal(result, full(total()))


@on_ranks(1, 2, 4)
def test_poll_says_when_the_device_is_done() -> None:
    for gate in rehearsed():
        with gate:
            handle = hvd.allreduce_async(full(1.0), name="polled", op=hvd.Sum)
            # Behind it in the order of the set, so by now it has been given to the device.
            hvd.barrier()
            assert gate.holds_operation(hvd.poll(handle))
            gate.open()
            until_over(handle)
        assert torch.equal(hvd.synchronize(handle), full(float(hvd.size())))


@on_ranks(1, 2, 4)
def test_a_slow_producer_is_waited_for_by_every_operation() -> None:
    rank, size = hvd.rank(), hvd.size()
    everybody = [other + 1.0 for other in range(size)]
    for number in range(3):
        mine = full(-2.0)
        torch.cuda._sleep(100_000_000)  # sleep: of the GPU, whose slowness is the point
        mine.fill_(rank + 1.0)
        handles = [
            hvd.allreduce_async(mine, name=f"slow {number}", op=hvd.Sum),
            hvd.allgather_async(mine[:10], name=f"slow {number}"),
            hvd.broadcast_async(mine, size - 1, name=f"slow {number}"),
            hvd.alltoall_async(mine[:size], name=f"slow {number}"),
            hvd.reducescatter_async(mine, name=f"slow {number}", op=hvd.Sum),
        ]
        reduced, gathered, sent, (turned, _), shared = [hvd.synchronize(handle) for handle in handles]
        # The stream has waited for the operations, so this comes too late for all of them.
        mine.fill_(-1.0)
        assert torch.equal(reduced, full(total()))
        assert gathered.tolist() == [value for value in everybody for _ in range(10)]
        assert torch.equal(sent, full(float(size)))
        assert turned.tolist() == everybody
        assert bool((shared == total()).all())


@on_ranks(1, 2, 4)
def test_the_consumer_may_use_another_stream() -> None:
    other = torch.cuda.Stream()
    for gate in rehearsed():
        with gate:
            mine = full(hvd.rank() + 1.0)
            address = mine.data_ptr()
            handle = hvd.allreduce_async_(mine, name="consumed elsewhere", op=hvd.Sum)
            with torch.cuda.stream(other):
                doubled = hvd.synchronize(handle) * 2
            # The stream that the memory belongs to has not waited for the operation, so it must not get it back yet.
            del mine
            replacement = full(-1.0)
            done = passed(other)
            assert gate.holds(done)
            assert gate.holds_operation(replacement.data_ptr() == address)
            gate.open()
            done.synchronize()
            assert torch.equal(doubled, full(2 * total()))


@on_ranks(1, 2, 4)
def test_the_producer_may_use_another_stream() -> None:
    other = torch.cuda.Stream()
    for gate in rehearsed():
        with torch.cuda.stream(other), gate:
            handle = hvd.allreduce_async(full(hvd.rank() + 1.0), name="produced elsewhere", op=hvd.Sum)
            with torch.cuda.stream(torch.cuda.default_stream()):
                result = hvd.synchronize(handle)
                done = passed()
                assert gate.holds(done)
                gate.open()
                done.synchronize()
                assert torch.equal(result, full(total()))


@on_ranks(1, 2)
def test_the_current_stream_is_the_one_that_pytorch_names() -> None:
    hvd.allreduce(full(1.0))
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)):
        with torch.cuda.stream(stream):
            assert _core.current_stream() == stream.cuda_stream == memory.stream_of(full(1.0))


@on_ranks(2, 4)
def test_results_of_a_size_that_was_not_foreseen() -> None:
    """Rows that differ between ranks are in memory of the engine's, which is freed behind the copy out of it."""
    ranks = range(hvd.size())
    for turn in range(20):
        rows = [1000 * (rank + 1) + turn for rank in ranks]
        mine = torch.full((rows[hvd.rank()], 7), float(hvd.rank()), device="cuda")
        found = hvd.allgather(mine, name=f"unforeseen {turn}")
        expected = [torch.full((rows[rank], 7), float(rank), device="cuda") for rank in ranks]
        assert torch.equal(found, torch.cat(expected))
        splits = [hvd.rank() + 10 * other for other in ranks]
        sent, received = hvd.alltoall(mine, splits=splits, name=f"unforeseen {turn}")
        from_each = [rank + 10 * hvd.rank() for rank in ranks]
        assert received.tolist() == from_each
        assert sent[:, 0].tolist() == [float(rank) for rank in ranks for _ in range(from_each[rank])]


@on_ranks(2)
def test_tensors_in_any_order_of_memory_stay_on_the_gpu() -> None:
    plain = torch.arange(24.0, device="cuda").reshape(4, 6)
    for gate in rehearsed():
        with gate:
            # A copy through the host would wait for the gate, and so for ever.
            result = hvd.allreduce((plain * (hvd.rank() + 1)).t(), op=hvd.Sum, name="turned")
            gate.open()
            assert torch.equal(result, (plain * 3).t())
