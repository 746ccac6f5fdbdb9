"""Objects on all ranks, by the module that other packages import them from."""

from ronde.mxnet.functions import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object"]
