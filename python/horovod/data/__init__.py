"""Horovod's data loaders."""

from ronde.data import (
    AsyncDataLoaderMixin,
    BaseDataLoader,
)

__all__ = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
]
