"""Graphs are captured beside our operations, and hold none of them."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from horovod.torch import HorovodInternalError
from together import on_ranks

ELEMENTS = 1 << 16


def ones() -> torch.Tensor:
    return torch.ones(ELEMENTS, device="cuda")


@on_ranks(1, 2, 4)
def test_a_capture_goes_on_while_operations_are_under_way() -> None:
    static = ones()
    # What PyTorch itself does for the first time must not be part of a capture.
    static.mul_(2).add_(1)
    torch.cuda.synchronize()
    for turn in range(3):
        # Larger each time, so that the engine has to make room meanwhile.
        tensors = [torch.ones(ELEMENTS << (2 * turn), device="cuda") for _ in range(4)]
        handles = [
            hvd.allreduce_async(tensor, op=hvd.Sum, name=f"beside {turn} {n}") for n, tensor in enumerate(tensors)
        ]
        gathered = hvd.allgather_async(torch.ones(hvd.rank() + 1 + turn, 7, device="cuda"), name=f"beside {turn}")
        graph = torch.cuda.CUDAGraph()
        static.fill_(1)
        with torch.cuda.graph(graph):
            static.mul_(2).add_(1)
            # Everybody has started its operations and is inside a capture, so here the engine's threads do the work.
            hvd.barrier()
        results = [hvd.synchronize(handle) for handle in handles]
        hvd.synchronize(gathered)
        assert all(bool((result == hvd.size()).all()) for result in results)
        graph.replay()
        assert torch.equal(static, 3 * ones())


@on_ranks(1, 2)
def test_an_operation_inside_a_capture_is_refused_on_all_ranks_and_the_capture_is_not_broken() -> None:
    hvd.allreduce(ones(), name="first")
    static = ones()
    static.add_(1)
    torch.cuda.synchronize()
    if hvd.rank() == 0:
        graph = torch.cuda.CUDAGraph()
        static.fill_(1)
        with torch.cuda.graph(graph):
            static.add_(1)
            with pytest.raises(ValueError, match="captured into a CUDA graph"):
                hvd.allreduce_async_(static, name="captured")
            with pytest.raises(ValueError, match="captured into a CUDA graph"):
                hvd.grouped_allreduce([static, static], name="captured")
            static.add_(1)
        graph.replay()
        assert torch.equal(static, 3 * ones())
    else:
        with pytest.raises(HorovodInternalError, match="captured into a CUDA graph"):
            hvd.synchronize(hvd.allreduce_async_(static, name="captured"))
        with pytest.raises(HorovodInternalError, match="captured into a CUDA graph"):
            hvd.grouped_allreduce([static, static], name="captured")
    assert torch.equal(hvd.allreduce(ones(), op=hvd.Sum, name="goes on"), hvd.size() * ones())
