"""What is compared on a GPU and what we want to reach, as data, in the terms of `harness.aims`.

The sizes here are those that are measured. An aim without a bound is shown for what it tells.
"""

from __future__ import annotations

from harness.aims import GLOO, KIB, MIB, RONDE, Aim, Measure

RONDE_NCCL = "ronde by NCCL"
RONDE_HOST = "ronde by host"
PYTORCH = "plain PyTorch"
COPY = "floor: device copy"
FLOOR = "floor: bytes to move"
LAUNCH = "kernel and event"

GIB = 1 << 30

# What `--only` takes; `gpu.suite` has a function for each.
PARTS = ("optimizer", "packing", "allreduce", "host")

SHARED_BY = (2, 4)
"""How many ranks share the GPU."""
SMALL = (4, 4 * KIB, 256 * KIB, MIB)
MIDDLE = (16 * MIB,)
LARGE = (64 * MIB, 256 * MIB, GIB)
QUICK_SIZES = (4, MIB, 64 * MIB)
HALF_SIZE = 64 * MIB
"""The size at which bfloat16 is measured, too."""
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
    """Return the aim of a training step with one rank, which exchanges its gradients with nobody."""
    return Aim(STEPS[case], (RESNET_BYTES,), ours, PYTORCH, Measure.WITHIN, 1.01)


def packing_aim(case: str) -> Aim:
    """Return the aim of the kernels that bring a batch together and apart."""
    return Aim(PACKINGS[case], (RESNET_BYTES,), RONDE, COPY, Measure.SHARE, 0.8)


def allreduce_section(ranks: int, dtype: str) -> str:
    """Return what rows of an allreduce are called."""
    return f"{ranks} ranks on one GPU" + ("" if dtype == FULL else f", {dtype}")


def allreduce_aims(ranks: int, dtype: str) -> list[Aim]:
    """Return the aims of an allreduce of ranks that share a GPU."""
    section = allreduce_section(ranks, dtype)
    return [
        Aim(section, SMALL, RONDE, LAUNCH, Measure.WITHIN),
        Aim(section, (*SMALL, *MIDDLE), RONDE, GLOO, Measure.FASTER),
        Aim(section, LARGE, RONDE, GLOO, Measure.FASTER, 20),
        Aim(section, MIDDLE, RONDE, FLOOR, Measure.WITHIN),
        Aim(section, LARGE, RONDE, FLOOR, Measure.WITHIN, 2),
    ]


HOST_AIM = Aim(f"{HOST_RANKS} ranks, through the host", (HOST_SIZE,), RONDE_HOST, GLOO, Measure.FASTER)


def floor_bytes(size: int, ranks: int) -> int:
    """Return the bytes of the GPU's memory that ranks must read and write to reduce `size` bytes on each of them.

    A tensor can be seen by its own process alone, so what others need of it goes through buffers of the engine. Each
    rank copies all but its own part into its buffer (2 (1 - 1/n) S read and written), reads its part from n places (S),
    writes it for itself and for the others (2 S/n), and copies the parts of the others (2 (1 - 1/n) S).
    """
    return 5 * size * ranks - 2 * size
