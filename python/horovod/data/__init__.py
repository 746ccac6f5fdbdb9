"""Horovod's data loaders."""

from horovod.data import data_loader_base as data_loader_base
from ronde.data import (
    AsyncDataLoaderMixin,
    BaseDataLoader,
)

__all__ = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
]
