"""What is compared on a GPU and what we want to reach, as data, in the terms of `harness.aims`.

The sizes here are those that are measured. An aim without a bound is shown for what it tells.
"""

from __future__ import annotations

from harness.aims import GLOO, KIB, MIB, RONDE, Aim, Measure

RONDE_NCCL = "ronde by NCCL"
RONDE_NCCL_FP16 = "ronde by NCCL, fp16"
# PyTorch's own way, with one rank of NCCL as well.
DDP = "PyTorch's DDP"
RONDE_MPS = "ronde, MPS"
GLOO_MPS = "Gloo, MPS"
RONDE_HOST = "ronde by host"
PYTORCH = "plain PyTorch"
COPY = "floor: device copy"
FLOOR = "floor: bytes to move"
LAUNCH = "kernel and event"
IN_PLACE, PACKED = "each in place", "packed"
KERNELS, HANDOVER = "a kernel each", "no kernels"

GIB = 1 << 30

# What `--only` takes; `gpu.suite` has a function for each.
PARTS = ("optimizer", "nccl", "packing", "threshold", "allreduce", "switch", "host")

SHARED_BY = (2, 4)
"""How many ranks share the GPU."""
SMALL = (4, 4 * KIB, 256 * KIB, MIB)
MIDDLE = (16 * MIB,)
LARGE = (64 * MIB, 256 * MIB, GIB)
QUICK_SIZES = (4, MIB, 64 * MIB)
HALF_SIZE = 64 * MIB
"""The size at which bfloat16 is measured, too."""
LARGE_TENSOR = 8 * MIB
"""From which size on tensors are reduced in place: `LARGE` in `crates/gpu/src/between/reduce.rs`."""
TENSOR_SIZES = tuple(size * KIB for size in (64, 256, 1024, 2048, 4096, 8192, 16384, 65536))
QUICK_TENSOR_SIZES = (256 * KIB, 4 * MIB, 16 * MIB)
HOST_SIZE = 64 * MIB
HOST_RANKS = 2
FULL, HALF = "float32", "bfloat16"

RESNET_BYTES = 4 * 25_557_032

STEPS = {
    "bf16": "ResNet-50 step, 256 images, bf16",
    "fp32": "ResNet-50 step, 64 images, fp32",
}
PACKINGS = {
    "moved": "ResNet-50's gradients, pack + unpack",
    "scaled": "ResNet-50's gradients, pack + unpack, scaled",
}


def step_aim(case: str, ours: str) -> Aim:
    """Return the aim of a training step with one rank, which exchanges its gradients with nobody.

    Compression is work that plain PyTorch does not have, so there it is only shown; and so is what others take.
    """
    bound = None if ours in (RONDE_NCCL_FP16, DDP) else 1.01
    return Aim(STEPS[case], (RESNET_BYTES,), ours, PYTORCH, Measure.WITHIN, bound)


def packing_aim(case: str) -> Aim:
    """Return the aim of the kernels that bring a batch together and apart."""
    return Aim(PACKINGS[case], (RESNET_BYTES,), RONDE, COPY, Measure.SHARE, 0.8)


THRESHOLD_AIM = Aim("one of many tensors, by NCCL", TENSOR_SIZES, IN_PLACE, PACKED, Measure.FASTER)


def allreduce_section(ranks: int, dtype: str) -> str:
    """Return what rows of an allreduce are called."""
    return f"{ranks} ranks on one GPU" + ("" if dtype == FULL else f", {dtype}")


def allreduce_aims(ranks: int, dtype: str, mps: bool) -> list[Aim]:
    """Return the aims of an allreduce of ranks that share a GPU, side by side by NVIDIA's MPS or in turns.

    The floor is what a GPU takes that need not change between processes. For ranks that take turns it is only shown.
    """
    section = allreduce_section(ranks, dtype)
    ours, gloo = (RONDE_MPS, GLOO_MPS) if mps else (RONDE, GLOO)
    return [
        Aim(section, SMALL, ours, LAUNCH, Measure.WITHIN),
        Aim(section, (*SMALL, *MIDDLE), ours, gloo, Measure.FASTER),
        Aim(section, LARGE, ours, gloo, Measure.FASTER, 20),
        Aim(section, MIDDLE, ours, FLOOR, Measure.WITHIN),
        Aim(section, LARGE, ours, FLOOR, Measure.WITHIN, 2 if mps else None),
    ]


def mps_aim(ranks: int, dtype: str) -> Aim:
    """Return what MPS does for an allreduce of ranks that share a GPU."""
    return Aim(allreduce_section(ranks, dtype), (*SMALL, *MIDDLE, *LARGE), RONDE_MPS, RONDE, Measure.FASTER)


def switch_aim(mps: bool) -> Aim:
    """Return what a change of the GPU between two processes is compared with."""
    manner = "side by side by MPS" if mps else "in turns"
    return Aim(f"2 processes on one GPU, {manner}", (0,), KERNELS, HANDOVER, Measure.WITHIN)


HOST_AIM = Aim(f"{HOST_RANKS} ranks, through the host", (HOST_SIZE,), RONDE_HOST, GLOO, Measure.FASTER)


def floor_bytes(size: int, ranks: int) -> int:
    """Return the bytes of the GPU's memory that ranks must read and write to reduce `size` bytes on each of them.

    A tensor can be seen by its own process alone, so what others need of it goes through buffers of the engine. Each
    rank copies all but its own part into its buffer (2 (1 - 1/n) S read and written), reads its part from n places (S),
    writes it for itself and for the others (2 S/n), and copies the parts of the others (2 (1 - 1/n) S).
    """
    return 5 * size * ranks - 2 * size
