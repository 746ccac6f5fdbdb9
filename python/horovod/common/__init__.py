"""What Horovod's framework modules have in common."""

from horovod.common import basics, elastic, exceptions, process_sets, util

__all__ = ["basics", "elastic", "exceptions", "process_sets", "util"]
