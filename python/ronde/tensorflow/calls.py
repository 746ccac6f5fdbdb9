"""One function for each operation that the library registers: names it, gives it its key, and lets it run.

Process sets are numbers here, as the operations have them; :mod:`ronde.tensorflow.ops` has the functions that users
call, and :mod:`ronde.tensorflow.gradient_rules` what is known of the gradients.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ronde._collectives import Sum
from ronde.process_sets import global_process_set
from ronde.tensorflow._library import ops as library
from ronde.tensorflow.naming import let_run, name_and_key

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]

# What the graph has to run before it says that it has no more data.
_COLLECTIVES = {
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
}


def allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set_id: int = 0,
) -> Any:
    """Reduce a tensor over the ranks of a set."""
    name, key = name_and_key("Allreduce", [tensor], name, ignore_name_scope)
    return let_run(
        library.horovod_allreduce(
            tensor,
            reduce_op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set_id=process_set_id,
            tensor_name=key,
            name=name,
        )
    )


def grouped_allreduce(
    tensors: list[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set_id: int = 0,
) -> list[Any]:
    """Reduce several tensors of one type together."""
    name, key = name_and_key("GroupedAllreduce", tensors, name, ignore_name_scope)
    found: list[Any] = let_run(
        library.horovod_grouped_allreduce(
            tensors,
            reduce_op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set_id=process_set_id,
            tensor_name=key,
            name=name,
        )
    )
    return found


def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set_id: int = 0) -> Any:
    """Join the rows of all ranks of a set."""
    name, key = name_and_key("Allgather", [tensor], name, ignore_name_scope)
    return let_run(
        library.horovod_allgather(
            tensor,
            ignore_name_scope=ignore_name_scope,
            process_set_id=process_set_id,
            tensor_name=key,
            name=name,
        )
    )


def grouped_allgather(
    tensors: list[Any], name: str | None = None, ignore_name_scope: bool = False, process_set_id: int = 0
) -> list[Any]:
    """Join the rows of several tensors of one type."""
    name, key = name_and_key("GroupedAllgather", tensors, name, ignore_name_scope)
    found: list[Any] = let_run(
        library.horovod_grouped_allgather(
            tensors,
            ignore_name_scope=ignore_name_scope,
            process_set_id=process_set_id,
            tensor_name=key,
            name=name,
        )
    )
    return found


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False, process_set_id: int = 0
) -> Any:
    """Give every rank of a set the root's tensor."""
    name, key = name_and_key("Broadcast", [tensor], name, ignore_name_scope)
    return let_run(
        library.horovod_broadcast(
            tensor,
            root_rank=root_rank,
            ignore_name_scope=ignore_name_scope,
            process_set_id=process_set_id,
            tensor_name=key,
            name=name,
        )
    )


def alltoall(
    tensor: Any, splits: Any, name: str | None = None, ignore_name_scope: bool = False, process_set_id: int = 0
) -> Any:
    """Send rows to every rank of a set; without splits (an empty tensor) the same number to each."""
    name, key = name_and_key("Alltoall", [tensor], name, ignore_name_scope)
    return let_run(
        library.horovod_alltoall(
            tensor,
            splits,
            ignore_name_scope=ignore_name_scope,
            process_set_id=process_set_id,
            tensor_name=key,
            name=name,
        )
    )


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set_id: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor over the ranks of a set and give each its share of the rows."""
    name, key = name_and_key("Reducescatter", [tensor], name, ignore_name_scope)
    return let_run(
        library.horovod_reducescatter(
            tensor,
            reduce_op=op,
            ignore_name_scope=ignore_name_scope,
            process_set_id=process_set_id,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            tensor_name=key,
            name=name,
        )
    )


def grouped_reducescatter(
    tensors: list[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set_id: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several tensors of one type and share out the rows of each."""
    name, key = name_and_key("GroupedReducescatter", tensors, name, ignore_name_scope)
    found: list[Any] = let_run(
        library.horovod_grouped_reducescatter(
            tensors,
            reduce_op=op,
            ignore_name_scope=ignore_name_scope,
            process_set_id=process_set_id,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            tensor_name=key,
            name=name,
        )
    )
    return found


def join() -> Any:
    """Say that this rank has no more data, and return the rank that was last to say so.

    Until then the rank takes part in the others' allreduces with nothing. In a graph this comes after every collective
    that is there already.
    """
    if tf.executing_eagerly():
        last = library.horovod_join()
        # Ranks that joined later have called more operations; from here on all count alike again.
        global_process_set.count_anew()
        return last
    operations = tf.compat.v1.get_default_graph().get_operations()
    with tf.control_dependencies([operation for operation in operations if operation.type in _COLLECTIVES]):
        return library.horovod_join()


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks of a set as a tensor, looked up when the graph runs."""
    return let_run(library.horovod_size(process_set_id=process_set_id, name=name))


def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks on this host as a tensor, looked up when the graph runs."""
    return let_run(library.horovod_local_size(name=name))


def rank_op(name: str | None = None) -> Any:
    """Return the rank of this process as a tensor, looked up when the graph runs."""
    return let_run(library.horovod_rank(name=name))


def local_rank_op(name: str | None = None) -> Any:
    """Return the number of this process on its host as a tensor, looked up when the graph runs."""
    return let_run(library.horovod_local_rank(name=name))


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if this rank is in a set, 0 if it is not, as a tensor, looked up when the graph runs.

    Negative numbers say why there is no answer: -1 no ``init()`` yet, -3 no such set.
    """
    return let_run(library.horovod_process_set_included(process_set_id=process_set_id, name=name))
