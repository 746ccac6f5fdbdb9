"""The synchronised batch normalisation on CUDA devices, with the kernels that PyTorch has for it.

What is exchanged differs from :mod:`ronde.torch.sync_batch_norm` only in form: the kernels give and take the inverse of
the standard deviation instead of sums of squares. Nothing here makes the host wait for the device, unless a batch is so
small that there may be nothing to normalise with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ronde._collectives import Sum
from ronde.torch import ops
from ronde.torch.handles import synchronize

__all__ = ["CudaSyncedNorm"]


class CudaSyncedNorm(torch.autograd.Function):
    """The normalisation."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Normalise a batch, and update the running statistics, if there are any, on the way."""
        batch = _in_known_order(batch)
        channels = batch.shape[1]
        count = batch.numel() // channels if channels else 0
        if count:
            mean, scale = torch.batch_norm_stats(batch, eps)
            own = torch.cat([mean, scale, mean.new_full((1,), float(count))])
        else:
            # Without values there are no statistics; a count of zero gives whatever stands there no weight.
            own = torch.zeros(2 * channels + 1, dtype=_wide(batch.dtype), device=batch.device)
            own[channels:-1] = 1.0
        parts = synchronize(ops.allgather_async(own.unsqueeze(0), "sync_batch_norm.statistics"))
        # The kernel divides by the counts so far, so ranks without values have to come last.
        parts = parts[parts[:, -1].argsort(descending=True)]
        counts = parts[:, -1].contiguous()
        if count <= 1 and counts.sum() <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {batch.shape}")
        # Of its first argument the kernel takes the type of the counts, where there are no running statistics to take
        # it from; that of the batch would be too narrow for them.
        mean, scale = torch.batch_norm_gather_stats_with_counts(
            parts,
            parts[:, :channels].contiguous(),
            parts[:, channels:-1].contiguous(),
            *running,
            momentum,
            eps,
            counts if running[0] is None else counts.to(running[0].dtype),
        )
        ctx.save_for_backward(batch, weight, mean, scale, counts.to(torch.int32))
        return torch.batch_norm_elemt(batch, weight, bias, mean, scale, eps) if count else torch.empty_like(batch)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of batch, weight and bias; those of the latter are local, as any parameter's."""
        batch, weight, mean, scale, counts = ctx.saved_tensors
        gradient = _in_known_order(gradient)
        of_batch = of_weight = of_bias = None
        sums = mean.new_zeros(2 * mean.numel())
        if batch.numel():
            first, second, of_weight, of_bias = torch.batch_norm_backward_reduce(
                gradient, batch, mean, scale, weight, True, weight is not None, weight is not None
            )
            sums = torch.cat([first, second])
        elif weight is not None:
            of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(weight)
        if ctx.needs_input_grad[0]:
            first, second = synchronize(ops.allreduce_async(sums, name="sync_batch_norm.gradients", op=Sum)).chunk(2)
            factor = None if weight is None else weight.to(mean.dtype)
            of_batch = torch.empty_like(batch)
            if batch.numel():
                of_batch = torch.batch_norm_backward_elemt(gradient, batch, mean, scale, factor, first, second, counts)
        if weight is None:
            # The kernel gives tensors for what it was not asked for.
            of_weight = of_bias = None
        return of_batch, of_weight, of_bias, None, None, None


def _in_known_order(batch: Tensor) -> Tensor:
    """Return the batch as it is where the kernels know its order in memory, else in plain order."""
    orders = (torch.channels_last, torch.channels_last_3d)
    known = any(batch.is_contiguous(memory_format=order) for order in orders)
    return batch if known else batch.contiguous()


def _wide(dtype: Any) -> Any:
    """Return the type in which the kernels give statistics."""
    return torch.float64 if dtype is torch.float64 else torch.float32
