"""Elastic training with PyTorch."""

from ronde.torch.elastic import (
    ElasticSampler,
    TorchState,
    run,
)

__all__ = [
    "ElasticSampler",
    "TorchState",
    "run",
]
