"""Batch normalisation over the batches of all ranks, as if they were one.

Written with plain tensor operations and two small exchanges, one in each direction, so it works wherever tensors do;
for CUDA devices there is :mod:`ronde.torch.cuda_batch_norm`, with kernels that read a batch fewer times.
Batches may differ in size between ranks: what is exchanged are counts, means and sums of squared differences, from
which the statistics of the whole follow without loss of accuracy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ronde._basics import basics
from ronde._collectives import Sum
from ronde.torch import ops
from ronde.torch.cuda_batch_norm import CudaSyncedNorm
from ronde.torch.handles import synchronize

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Normalises each channel over the batches of all ranks while training; in evaluation like any batch norm.

    >>> import torch, horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.SyncBatchNorm(3)(torch.randn(4, 3)).shape
    torch.Size([4, 3])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalise a batch."""
        self._check_input_dim(input)
        if not self.training or basics.size() == 1:
            # Without statistics of its own a batch norm uses the batch's, also in evaluation.
            return super().forward(input)
        if input.is_cuda:
            return self._with_kernels(input)
        output, mean, variance, count = _SyncedNorm.apply(input, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            self._update_running(mean, variance, count)
        return output

    def _with_kernels(self, batch: Tensor) -> Tensor:
        running, momentum = (None, None), 0.0
        if self.track_running_stats:
            running = (self.running_mean, self.running_var)
            # No momentum means the plain average over all batches so far.
            momentum = self.momentum if self.momentum is not None else 1.0 / (float(self.num_batches_tracked) + 1.0)
        output: Tensor = CudaSyncedNorm.apply(batch, self.weight, self.bias, running, momentum, self.eps)
        if self.track_running_stats:
            self.num_batches_tracked.add_(1)
        return output

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        # No momentum means the plain average over all batches so far.
        weight = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


class _SyncedNorm(torch.autograd.Function):
    """The normalisation; besides the output it returns mean, variance and count of the whole batch."""

    @staticmethod
    def forward(ctx: Any, batch: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        others = [0, *range(2, batch.dim())]
        wide = batch.to(_wide(batch.dtype))
        count = wide.numel() // wide.shape[1] if wide.shape[1] else 0
        mean = wide.sum(others) / max(count, 1)
        squares = (wide - _spread(mean, wide)).square().sum(others)
        own = torch.cat([mean, squares, mean.new_tensor([count])])
        parts = synchronize(ops.allgather_async(own.unsqueeze(0), "sync_batch_norm.statistics"))

        channels = wide.shape[1]
        means, all_squares, counts = parts[:, :channels], parts[:, channels:-1], parts[:, -1:]
        total = counts.sum()
        if total <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {batch.shape}")
        mean = (means * counts).sum(0) / total
        variance = (all_squares + counts * (means - mean).square()).sum(0) / total

        scale = torch.rsqrt(variance + eps)
        normal = (wide - _spread(mean, wide)) * _spread(scale, wide)
        ctx.save_for_backward(batch, weight, mean, scale, total)
        output = normal
        if weight is not None:
            output = output * _spread(weight.to(wide.dtype), wide)
        if bias is not None:
            output = output + _spread(bias.to(wide.dtype), wide)
        ctx.mark_non_differentiable(mean, variance, total)
        return output.to(batch.dtype), mean, variance, total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        batch, weight, mean, scale, total = ctx.saved_tensors
        others = [0, *range(2, batch.dim())]
        wide = gradient.to(mean.dtype)
        normal = (batch.to(mean.dtype) - _spread(mean, wide)) * _spread(scale, wide)
        sums = torch.stack([wide.sum(others), (wide * normal).sum(others)])
        of_bias, of_weight = sums
        of_batch = None
        if ctx.needs_input_grad[0]:
            all_sums = synchronize(ops.allreduce_async(sums, name="sync_batch_norm.gradients", op=Sum)) / total
            of_batch = wide - _spread(all_sums[0], wide) - normal * _spread(all_sums[1], wide)
            of_batch = of_batch * _spread(scale if weight is None else scale * weight.to(scale.dtype), wide)
            of_batch = of_batch.to(batch.dtype)
        if weight is None:
            return of_batch, None, None, None
        return of_batch, of_weight.to(weight.dtype), of_bias.to(weight.dtype), None


def _wide(dtype: Any) -> Any:
    """Return the type to compute in: half precision is not enough for sums."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _spread(channels: Tensor, batch: Tensor) -> Tensor:
    """Shape one number a channel so that it applies to a batch."""
    return channels.view(1, -1, *[1] * (batch.dim() - 2))
