"""Dealing a dataset to ranks that come and go."""

from ronde.torch.elastic.sampler import (
    ElasticSampler,
)

__all__ = [
    "ElasticSampler",
]
