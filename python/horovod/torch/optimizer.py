"""The distributed optimizer, and the classes behind it that other packages look at."""

from ronde.torch.optimizer import (
    DistributedOptimizer,
    _DistributedAdasumOptimizer,
    _DistributedOptimizer,
)

__all__ = [
    "DistributedOptimizer",
    "_DistributedAdasumOptimizer",
    "_DistributedOptimizer",
]
