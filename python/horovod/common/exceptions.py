"""Horovod's exceptions; the classes are Ronde's own, so either name catches them."""

from ronde.exceptions import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
