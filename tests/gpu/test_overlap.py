"""Gradients travel while the backward pass computes: both are seen side by side on a trace of the GPU."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import horovod.torch as hvd
from together import on_ranks

WIDTH, LAYERS, ROWS = 2048, 12, 8192
# Our kernels carry this name; NCCL's kernels its own.
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


@on_ranks(2)
def test_communication_runs_beside_the_backward_pass() -> None:
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).cuda()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters())
    batch = torch.randn(ROWS, WIDTH, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    hvd.barrier()
    found = kernels(step)
    ours = [kernel for kernel in found if is_communication(kernel)]
    theirs = [kernel for kernel in found if not is_communication(kernel)]
    assert ours, sorted({kernel["name"] for kernel in found})
    assert theirs
    assert {kernel["stream"] for kernel in ours}.isdisjoint(kernel["stream"] for kernel in theirs)
    beside = [
        kernel
        for kernel in ours
        if any(other["begin"] < kernel["end"] and kernel["begin"] < other["end"] for other in theirs)
    ]
    print(f"{len(beside)} of {len(ours)} kernels that move gradients ran beside others", flush=True)
    # The last gradients have nothing left to hide behind.
    assert len(beside) >= len(ours) / 4
