"""What our own compressors do on a GPU: the bits of PyTorch's casts, without PyTorch's casts.

A subclass of a compressor is the user's, so there PyTorch casts; that is what results are compared with.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

import horovod.torch as hvd
from models import assert_same, assert_same_on_all_ranks, train_together
from test_overlap import is_communication, kernels
from together import on_ranks

MIB = 1 << 20


class Fp16ByHand(hvd.Compression.fp16):
    """Casts by PyTorch."""


class Bf16ByHand(hvd.Compression.bf16):
    """Casts by PyTorch."""


COMPRESSIONS = [(hvd.Compression.fp16, Fp16ByHand), (hvd.Compression.bf16, Bf16ByHand)]
OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
FACTORS = [(1.0, 1.0), (3.0, 0.3)]
# Ties between neighbours in 16 bits, what is too large for them and too small, zeros, and what a factor makes overflow.
AWKWARD = [1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 1.0 + 2.0**-8, 65519.9, 65520.0, 1e-8, -1e-40, 0.0, -0.0, 3.3e38, 3e4]


def numbers(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers of which few are those of 16 bits; a few of the awkward ones are the same on all ranks."""
    random = torch.Generator("cuda").manual_seed(17 + hvd.rank() + count)
    found = torch.randn(count, dtype=dtype, device="cuda", generator=random)
    awkward = torch.tensor(AWKWARD, dtype=dtype, device="cuda")[:count]
    found[: len(awkward)] = awkward
    return found


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Fail unless both are the same to the bit; of a NaN, which one it is does not matter."""
    assert found.dtype == expected.dtype
    kept = ~expected.isnan()
    assert torch.equal(~found.isnan(), kept)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    assert torch.equal(found[kept].view(bits), expected[kept].view(bits)), (found - expected).abs().max()


@on_ranks(1, 2, 3, 4)
def test_bits_are_those_of_casting_by_hand() -> None:
    turn = itertools.count()
    for dtype, (ours, by_hand) in itertools.product([torch.float32, torch.float64], COMPRESSIONS):
        tensors = [numbers(count, dtype) for count in (1, 7, 0, 1000, 65_537)]
        for op, (before, after) in itertools.product(OPS, FACTORS):
            terms: dict[str, Any] = {"op": op, "prescale_factor": before, "postscale_factor": after}
            for tensor in tensors:
                found = hvd.allreduce(tensor, compression=ours, name=f"narrow {next(turn)}", **terms)
                expected = hvd.allreduce(tensor, compression=by_hand, name=f"narrow {next(turn)}", **terms)
                same_bits(found, expected)
            together = hvd.grouped_allreduce(tensors, compression=ours, name=f"narrow {next(turn)}", **terms)
            expected_all = hvd.grouped_allreduce(tensors, compression=by_hand, name=f"narrow {next(turn)}", **terms)
            for found, expected in zip(together, expected_all):
                same_bits(found, expected)


@on_ranks(1, 2, 4)
def test_large_tensors_and_mixed_groups_are_narrowed_as_well() -> None:
    group = [
        numbers(5_000_003, torch.float32),
        numbers(10, torch.float64),
        numbers(9_000_000, torch.float16),
        torch.arange(12, device="cuda").reshape(3, 4),
        numbers(6, torch.bfloat16),
        numbers(35, torch.float32).reshape(5, 7).t(),
    ]
    for ours, by_hand in COMPRESSIONS:
        found_all = hvd.grouped_allreduce(group, op=hvd.Sum, compression=ours, name="mixed")
        expected_all = hvd.grouped_allreduce(group, op=hvd.Sum, compression=by_hand, name="mixed by hand")
        for found, expected in zip(found_all, expected_all):
            assert found.shape == expected.shape
            same_bits(found.float(), expected.float())
        alone = hvd.allreduce(group[0], compression=ours, name="large")
        same_bits(alone, hvd.allreduce(group[0], compression=by_hand, name="large by hand"))


@on_ranks(2, 4)
def test_ranks_that_cast_by_hand_and_ranks_that_do_not_find_each_other() -> None:
    for dtype, count in itertools.product([torch.float32, torch.float64], [3, 5_000_000]):
        mine = numbers(count, dtype)
        expected = hvd.allreduce(mine.half(), name="all by hand").to(dtype)
        if hvd.rank() % 2:
            found = hvd.allreduce(mine.half(), name="some by hand").to(dtype)
        else:
            found = hvd.allreduce(mine, compression=hvd.Compression.fp16, name="some by hand")
        same_bits(found, expected)


@on_ranks(1, 2, 4)
def test_gradients_travel_as_the_tensor_did() -> None:
    results = []
    for compression in (hvd.Compression.fp16, Fp16ByHand):
        single = numbers(1000, torch.float32).clamp(-10, 10).requires_grad_()
        several = [numbers(count, torch.float32).clamp(-10, 10).requires_grad_() for count in (5, 3000)]
        name = f"tracked {compression.__name__}"
        reduced = hvd.allreduce(single, op=hvd.Sum, compression=compression, name=name)
        group = hvd.grouped_allreduce(several, compression=compression, prescale_factor=0.7, name=name)
        (reduced.square().sum() + sum(each.square().sum() for each in group)).backward()
        results.append([single.grad, *(each.grad for each in several)])
    for found, expected in zip(*results):
        same_bits(found, expected)


@on_ranks(2, 4)
def test_training_is_that_of_casting_by_hand() -> None:
    def momentum(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)

    options: list[dict[str, Any]] = [{}, {"groups": 2}, {"gradient_predivide_factor": 2.0}, {"op": hvd.Adasum}]
    for (ours, by_hand), more in itertools.product(COMPRESSIONS, options):
        together = train_together(momentum, compression=ours, **more)
        assert_same(together, train_together(momentum, compression=by_hand, **more), tolerance=0.0)
        assert_same_on_all_ranks(together)


@on_ranks(2)
def test_a_compressor_of_the_user_is_called() -> None:
    calls = []

    class Noted(hvd.Compression.fp16):
        """Says that it was asked."""

        @classmethod
        def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
            calls.append("compress")
            return super().compress(tensor)

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
            calls.append("decompress")
            return tensor.to(ctx)

    hvd.allreduce(numbers(5, torch.float32), compression=Noted, name="noted")
    assert calls == ["compress", "decompress"]


@on_ranks(1, 2)
def test_no_kernel_but_ours_runs_and_two_of_them_do_a_whole_group() -> None:
    tensors = [numbers(100 * count + 1, torch.float32) for count in range(30)]

    def reduced(compression: Any) -> list[dict[str, Any]]:
        def step() -> None:
            hvd.grouped_allreduce(tensors, op=hvd.Sum, compression=compression, name=f"seen {compression.__name__}")

        # What compiles kernels, or makes room, does so the first time.
        step()
        torch.cuda.synchronize()
        hvd.barrier()
        return kernels(step)

    found = reduced(hvd.Compression.fp16)
    names = sorted({kernel["name"] for kernel in found})
    assert all(is_communication(kernel) for kernel in found), names
    # One packs and one unpacks, and NCCL may need one of its own in between.
    assert 2 <= len(found) <= 3, names
    assert any(name.startswith("ronde_convert_float32_float16") for name in names), names
    by_hand = reduced(Fp16ByHand)
    assert sum(not is_communication(kernel) for kernel in by_hand) >= len(tensors), "PyTorch's casts would be seen"


@on_ranks(1, 2)
def test_no_copy_in_16_bits_is_made_by_pytorch() -> None:
    mine = numbers(16 * MIB, torch.float32)
    hvd.allreduce(mine, compression=hvd.Compression.fp16, name="room")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = hvd.allreduce(mine, compression=hvd.Compression.fp16, name="room")
    most = torch.cuda.max_memory_allocated() - before
    assert most <= result.numel() * result.element_size() + 2 * MIB, f"{most} bytes for a result of 64 MiB"
