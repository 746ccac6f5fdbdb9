"""Elastic training with PyTorch."""

from horovod.torch.elastic import sampler as sampler
from horovod.torch.elastic import state as state
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
