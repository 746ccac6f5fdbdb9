"""Dealing a dataset to ranks in a way that survives a change of their number in the middle of an epoch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from ronde._basics import basics

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler):
    """Gives each rank its share of the samples that were not processed yet in this epoch.

    Call ``record_batch`` after each batch and ``set_epoch`` at the *end* of an epoch, so that what was processed is
    forgotten only then. Put the sampler into the State: it is dealt anew after each reset.

    >>> import horovod.torch as hvd
    >>> hvd.init()
    >>> sampler = ElasticSampler([10, 20, 30, 40], shuffle=False)
    >>> sampler.record_batch(0, 3); sampler.reset(); list(sampler)
    [3]
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Start another epoch, with all samples and in another order."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that every rank has processed a batch."""
        del batch_idx
        self.processed_num += batch_size * self.num_replicas

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the samples of a batch of this rank."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """Return how far the epoch has come."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from where ``state_dict`` was taken."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal the remaining samples to the ranks there are now; some are repeated so that all get the same number."""
        self.num_replicas = basics.size()
        self.rank = basics.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        even = list(itertools.islice(itertools.cycle(self.remaining_indices), self.total_size))
        self.indices = even[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
