"""Batch normalisation over all ranks."""

from ronde.tensorflow.sync_batch_norm import (
    SyncBatchNormalization,
)

__all__ = [
    "SyncBatchNormalization",
]
