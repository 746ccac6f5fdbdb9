"""Batch normalisation over all ranks."""

from ronde.torch.sync_batch_norm import (
    SyncBatchNorm,
)

__all__ = [
    "SyncBatchNorm",
]
