"""Gradients travel while the backward pass computes: both are seen side by side on a trace of the GPU."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import horovod.torch as hvd
from horovod.common import util
from together import on_ranks

WIDTH, LAYERS, ROWS = 2048, 12, 8192
# Our kernels carry this name; most of NCCL's kernels its own, and whatever else is on those streams is theirs, too.
COMMUNICATION = ("ronde_", "nccl")


def kernels(step: Any) -> list[dict[str, Any]]:
    """Return what ran on the GPU during a step: names, streams, beginnings and ends."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return [
        {
            "name": event["name"],
            "stream": event["args"]["stream"],
            "begin": event["ts"],
            "end": event["ts"] + event["dur"],
        }
        for event in events
        if event.get("cat") == "kernel"
    ]


def is_communication(kernel: dict[str, Any]) -> bool:
    return any(kernel["name"].lower().startswith(name) for name in COMMUNICATION)


def beside(compression: type) -> tuple[int, int]:
    """Train for a step, and return how many of our kernels ran beside those of this rank's own passes, of how many."""
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).cuda()
    descent = torch.optim.SGD(model.parameters(), lr=1e-4)
    # So that gradients of a rank by itself travel, too.
    with util.env(HOROVOD_ELASTIC="1"):
        optimizer = hvd.DistributedOptimizer(descent, model.named_parameters(), compression=compression)
    batch = torch.randn(ROWS, WIDTH, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    hvd.barrier()
    found = kernels(step)
    streams = {kernel["stream"] for kernel in found if is_communication(kernel)}
    ours = [kernel for kernel in found if kernel["stream"] in streams]
    theirs = [kernel for kernel in found if kernel["stream"] not in streams]
    assert ours, sorted({kernel["name"] for kernel in found})
    assert theirs, "nothing is computed on other streams than ours"
    together = [
        kernel
        for kernel in ours
        if any(other["begin"] < kernel["end"] and kernel["begin"] < other["end"] for other in theirs)
    ]
    print(f"{len(together)} of {len(ours)} kernels that move gradients ran beside others", flush=True)
    return len(together), len(ours)


@on_ranks(1)
def test_gradients_are_packed_beside_the_backward_pass() -> None:
    # Compressed, since a rank by itself has nothing to do to gradients that travel as they are, unless NCCL is asked.
    together, ours = beside(hvd.Compression.fp16)
    # The last gradients have nothing left to hide behind.
    assert together >= ours / 2


@on_ranks(2)
def test_ranks_that_share_a_gpu_reduce_beside_the_backward_pass() -> None:
    # The rank whose passes end first waits for the other's gradients without any work of its own left to be beside.
    shares = hvd.allgather_object(beside(hvd.Compression.none))
    assert max(together / ours for together, ours in shares) >= 1 / 4, shares
