"""Times the kernels that bring the gradients of ResNet-50 together for NCCL and apart again, beside a plain copy.

    RONDE_GPU_PATH=nccl python -m gpu.packing --rounds 3

NCCL with one rank: everything runs but the exchange. How long kernels take comes from the profiler, and so does how
long a copy takes, so that both are measured with one clock. Bringing 102 MB together and apart moves as much as copying
102 MB twice.

Large tensors are reduced where they lie (`crates/gpu/src/between/reduce.rs`), so in the case `moved` tensors are handed
over in pieces of 4 MiB at the most, all of which are packed. In the case `scaled` there are factors, which are applied
while packing; then all 161 tensors are packed as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import horovod.torch as hvd
from gpu.stopwatch import the_device
from training.shapes import resnet50
from training.timing import WrongResultError

PIECE_ELEMENTS = (4 << 20) // 4
CALLS = 20
WARM_UP_CALLS = 3
# Our kernels are called so.
OURS = "ronde_"
# What the trace calls kernels and copies on the device.
ON_DEVICE = ("kernel", "gpu_memcpy")


class NotPackedError(Exception):
    """What was to be measured did not run."""


def gradients(device: torch.device) -> list[Tensor]:
    """Return tensors of the shapes of ResNet-50's gradients, with numbers in them."""
    return [torch.randn(shape, device=device) for shape in resnet50()]


def pieces(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the same memory as tensors of 4 MiB at the most."""
    return [piece for tensor in tensors for piece in tensor.view(-1).split(PIECE_ELEMENTS)]


def cases(tensors: Sequence[Tensor]) -> dict[str, Callable[[], object]]:
    """Return calls that pack and unpack all bytes of the tensors, and leave them with the numbers they have."""
    small = pieces(tensors)
    return {
        "moved": lambda: hvd.grouped_allreduce_(small, op=hvd.Sum, name="moved"),
        "scaled": lambda: hvd.grouped_allreduce_(
            tensors, op=hvd.Sum, name="scaled", prescale_factor=2.0, postscale_factor=0.5
        ),
    }


def trace(call: Callable[[], object]) -> list[dict[str, Any]]:
    """Make some calls and return what the profiler saw on the device."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]


def microseconds(events: Sequence[dict[str, Any]], calls: int, names: str, fewest: int) -> float:
    """Return how long kernels and copies whose names begin so took for each call, which has to have run some."""
    on_device = [event for event in events if event.get("cat") in ON_DEVICE]
    taken = [event["dur"] for event in on_device if event["name"].startswith(names)]
    if len(taken) < fewest * calls:
        seen = ", ".join(sorted({event["name"] for event in on_device})) or "nothing"
        raise NotPackedError(f"{calls} calls ran {names}* on the device {len(taken)} times; the profiler saw {seen}")
    return sum(taken) / calls


def main() -> None:
    """Measure in rounds, the copy and all cases in each, and print a line for each case."""
    parser = argparse.ArgumentParser(description="Time packing and unpacking of gradients.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    device = the_device()
    hvd.init()
    tensors = gradients(device)
    before = [tensor.clone() for tensor in tensors]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    source, target = (torch.zeros(size // 4, device=device) for _ in range(2))
    calls = {"copy": lambda: target.copy_(source), **cases(tensors)}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARM_UP_CALLS):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            # Whatever PyTorch copies with; of ours a kernel that packs and one that unpacks.
            names, fewest = ("", 1) if name == "copy" else (OURS, 2)
            taken[name].append(microseconds(trace(call), CALLS, names, fewest))
    if not all(torch.equal(tensor, expected) for tensor, expected in zip(tensors, before)):
        raise WrongResultError("the gradients are not what they were")
    copied = statistics.median(taken.pop("copy"))
    for name, durations in taken.items():
        # One copy for packing, one for unpacking.
        figures = {"bytes": size, "ours_us": statistics.median(durations), "copies_us": 2 * copied}
        print(json.dumps({"work": "packing", "case": name, **figures}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
