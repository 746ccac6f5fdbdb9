"""Times many tensors of one size on their way through NCCL: packed into one buffer, or each in place.

    RONDE_GPU_PATH=nccl python -m gpu.threshold packed 65536 1048576
    RONDE_GPU_PATH=nccl HOROVOD_FUSION_THRESHOLD=0 python -m gpu.threshold direct 65536 1048576

Tensors of a batch are packed by one kernel, reduced by one call, and unpacked by another kernel; large ones are left
where they lie and have a call each (`LARGE` in `crates/gpu/src/between/reduce.rs`). From which size on that is better
is what this measures. Factors, which are applied while packing, have tensors of any size packed; a fusion threshold of
0 has every tensor travel alone, and what is alone is never packed.

NCCL with one rank exchanges nothing, so in place a tensor costs what the host needs for it, and packed its share of the
kernels. Between GPUs every call of NCCL costs more, so the size from which packing no longer pays is larger there than
what is found here, not smaller.
"""

from __future__ import annotations

import argparse
import json
import math

import torch
from torch import Tensor

import horovod.torch as hvd
from gpu.stopwatch import Stopwatch, the_device
from training.timing import WrongResultError, times

# What a call is given in all, and at least how many tensors.
TOTAL_BYTES = 64 << 20
FEWEST_TENSORS = 2
BURST_SECONDS = 0.05
MOST_CALLS = 200
# Powers of two, so that nothing is rounded.
FACTORS = {"prescale_factor": 2.0, "postscale_factor": 0.5}


def tensors_of(size: int, device: torch.device) -> list[Tensor]:
    """Return so many tensors of a size that a call has enough to do."""
    count = max(TOTAL_BYTES // size, FEWEST_TENSORS)
    return [torch.full((size // 4,), float(number % 7), device=device) for number in range(count)]


def measure(case: str, size: int, rounds: int, device: torch.device) -> dict[str, object]:
    """Return what one tensor of this size takes, as the median of some bursts of calls."""
    tensors = tensors_of(size, device)
    before = [tensor.clone() for tensor in tensors]
    factors = FACTORS if case == "packed" else {}
    stopwatch = Stopwatch(device)

    def seconds(calls: int) -> float:
        stopwatch.settle()
        stopwatch.start()
        for _ in range(calls):
            hvd.grouped_allreduce_(tensors, op=hvd.Sum, name=f"{case}.{size}", **factors)
        return stopwatch.stop() / calls

    calls = 1
    # The first calls make room and load kernels; how many it takes for a burst is found step by step.
    for _ in range(3):
        calls = min(max(math.ceil(BURST_SECONDS / seconds(calls)), 1), MOST_CALLS)
    taken = [seconds(calls) / len(tensors) for _ in range(rounds)]
    if not all(torch.equal(tensor, expected) for tensor, expected in zip(tensors, before)):
        raise WrongResultError("the sum over one rank is not what was given")
    return {"work": "threshold", "case": case, "bytes": size, "calls": rounds * calls, **times(taken)}


def main() -> None:
    """Measure the sizes that the command line names, and print a line for each."""
    parser = argparse.ArgumentParser(description="Time tensors that are packed for NCCL, or reduced in place.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("case", choices=("packed", "direct"))
    parser.add_argument("sizes", nargs="+", type=int, help="bytes of a tensor")
    options = parser.parse_args()
    device = the_device()
    hvd.init()
    for size in options.sizes:
        print(json.dumps(measure(options.case, size, options.rounds, device)), flush=True)
        torch.cuda.empty_cache()
    hvd.shutdown()


if __name__ == "__main__":
    main()
