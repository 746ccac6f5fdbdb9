"""Horovod's class of functions that do not depend on a framework."""

from ronde._basics import (
    HorovodBasics,
)

__all__ = [
    "HorovodBasics",
]
