"""Horovod's data loaders, by the module they used to be in."""

from ronde.data import (
    AsyncDataLoaderMixin,
    BaseDataLoader,
)

__all__ = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
]
