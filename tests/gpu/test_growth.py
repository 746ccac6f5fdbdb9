"""Ten thousand operations leave nothing behind: in PyTorch's allocator, on the GPU, or on the host."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

import horovod.torch as hvd
from together import on_ranks

MIB = 1 << 20
BATCH = 50


def held() -> tuple[int, int, int]:
    """Return the bytes that PyTorch has given out, that are in use on the GPU, and that this process has in memory."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return torch.cuda.memory_allocated(), total - free, pages * resource.getpagesize()


def operations(count: int) -> None:
    rank = hvd.rank()
    tensors = [torch.ones(1 + 1000 * (number % 7), device="cuda") for number in range(BATCH)]
    rows = torch.ones(100 + rank, 3, device="cuda")
    for _ in range(count // BATCH):
        # Forty of one kind, and ten of the others, whose results the engine has to find room for.
        handles = [hvd.allreduce_async_(tensor, name=f"grows {number}") for number, tensor in enumerate(tensors[:40])]
        handles += [hvd.allgather_async(rows, name=f"grows {number}") for number in range(4)]
        handles += [hvd.broadcast_async(tensors[40], 0, name=f"grows {number}") for number in range(3)]
        handles += [hvd.alltoall_async(rows, [rank] * hvd.size(), name=f"grows {number}") for number in range(3)]
        for handle in handles:
            hvd.synchronize(handle)


def quiet() -> tuple[int, int, int]:
    """Return what is held once no rank has anything under way: all of them share the GPU."""
    torch.cuda.synchronize()
    hvd.barrier()
    found = held()
    hvd.barrier()
    return found


@on_ranks(1, 2, 4)
def test_nothing_is_left_of_ten_thousand_operations() -> None:
    operations(2_000)
    before = quiet()
    operations(10_000)
    after = quiet()
    assert after[0] == before[0], f"PyTorch has given out {before[0]} bytes before and {after[0]} after"
    # All ranks share the GPU; what each of them may keep is less than one byte an operation.
    assert after[1] - before[1] <= 8 * MIB, f"{before[1]} bytes were in use on the GPU before and {after[1]} after"
    assert after[2] - before[2] <= 32 * MIB, f"the process had {before[2]} bytes before and {after[2]} after"
