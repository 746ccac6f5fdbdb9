"""The engine, on numbers; private to the package.

A process set is named by its number, 0 being all ranks. Addresses must come from tensors that are kept alive, and left
alone, until ``wait`` has returned for the operation.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, final

__all__ = [
    "DTYPES",
    "Inquiry",
    "PlainTensors",
    "__version__",
    "add_process_set",
    "after_fork_in_child",
    "answer_inquiry",
    "bridge_table",
    "cuda_available",
    "current_stream",
    "describe_array",
    "describe_dlpack",
    "dtype_code",
    "enqueue_allgather",
    "enqueue_allreduce",
    "enqueue_alltoall",
    "enqueue_barrier",
    "enqueue_broadcast",
    "enqueue_fault",
    "enqueue_grouped_allreduce",
    "enqueue_join",
    "enqueue_reducescatter",
    "fail",
    "init",
    "inquiries",
    "is_homogeneous",
    "is_initialized",
    "keep",
    "nccl_version",
    "pending",
    "place",
    "poll",
    "prefer_gpu",
    "process_sets",
    "rank_and_size",
    "remove_process_set",
    "shutdown",
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "synchronize_all",
    "use_gpu",
    "use_streams",
    "wait",
]

__version__: Final[str]
# The names of the element types; a type's code is its place.
DTYPES: Final[tuple[str, ...]]

def init(process_sets: list[list[int]] | None = None, dynamic: bool = False) -> None: ...

# False: called by a signal handler in the middle of another call of the engine, which leaves the job when it ends.
def shutdown() -> bool: ...
def after_fork_in_child() -> None: ...

# The address of the functions that plug-in libraries call; valid until the process ends.
def bridge_table() -> int: ...
def is_initialized() -> bool: ...
def place() -> tuple[int, int, int, int, int, int]: ...
def rank_and_size() -> tuple[int, int]: ...
def is_homogeneous() -> bool: ...
def dtype_code(name: str) -> int: ...
def describe_array(array: Any) -> tuple[int, int, int, bool] | None: ...
def describe_dlpack(capsule: Any) -> tuple[int, list[int], int, bool, bool]: ...

# Operations return a handle at once. Without a job, or after a failure, they raise HorovodInternalError; ValueError if
# the name is in flight already, the process set is unknown or this rank is not in it, or arguments do not fit together.
# With ``awaited`` the caller waits for the operation right away, which spares a change of threads. With ``stream`` the
# tensors are in the memory of the GPU in use, and can be read behind what that stream was given until now.
def enqueue_allreduce(
    process_set: int,
    name: str,
    input: int,
    output: int,
    shape: Sequence[int],
    dtype: int,
    op: int,
    prescale: float,
    postscale: float,
    priority: int,
    awaited: bool = False,
    stream: int | None = None,
    wire: int | None = None,
) -> int: ...

# Tensors of a group: input, output, shape, dtype; and the types that they travel in, where those are narrower.
def enqueue_grouped_allreduce(
    process_set: int,
    name: str,
    tensors: Sequence[tuple[int, int, Sequence[int], int]],
    op: int,
    prescale: float,
    postscale: float,
    priority: int,
    awaited: bool = False,
    stream: int | None = None,
    wires: Sequence[int | None] = [],
) -> int: ...

# `room` is memory for results, address and bytes: it is taken where exactly so many bytes are needed.
def enqueue_allgather(
    process_set: int,
    name: str,
    tensors: Sequence[tuple[int, Sequence[int], int]],
    grouped: bool,
    awaited: bool = False,
    stream: int | None = None,
    room: Sequence[tuple[int, int]] = [],
) -> int: ...
def enqueue_broadcast(
    process_set: int,
    name: str,
    input: int,
    output: int,
    shape: Sequence[int],
    dtype: int,
    root_rank: int,
    awaited: bool = False,
    stream: int | None = None,
) -> int: ...
def enqueue_alltoall(
    process_set: int,
    name: str,
    input: int,
    shape: Sequence[int],
    dtype: int,
    splits: list[int] | None,
    awaited: bool = False,
    stream: int | None = None,
    room: tuple[int, int] | None = None,
) -> int: ...
def enqueue_reducescatter(
    process_set: int,
    name: str,
    tensors: Sequence[tuple[int, int, Sequence[int], int]],
    op: int,
    prescale: float,
    postscale: float,
    grouped: bool,
    awaited: bool = False,
    stream: int | None = None,
) -> int: ...
def enqueue_barrier(process_set: int, name: str, awaited: bool = False) -> int: ...
def enqueue_join(name: str, awaited: bool = False) -> int: ...

# This rank found its own arguments wrong: the operation fails on every rank of the set instead of waiting for this one.
def enqueue_fault(process_set: int, kind: str, name: str, message: str, tensors: int = 1) -> None: ...
def poll(handle: int) -> bool: ...

# None for operations with given outputs and for unknown handles; for an allgather a list of (DLPack capsule of bytes or
# None, shape); for an alltoall (capsule or None, shape, rows received from each); for a join the rank that joined last.
# There is no capsule if there are no bytes, or if they are in the room that was given.
def wait(handle: int) -> Any: ...

# Operations that keep objects until somebody has waited for them with `synchronize`, which returns the result or what
# `finish` makes of it and of what `wait` would return; None for handles that are not known. On a GPU nobody waits: the
# framework's current stream does. `stream` is the one that the operation was started with.
def keep(
    handle: int, result: Any, finish: Callable[[Any, Any], Any] | None, tensors: Any, stream: int | None = None
) -> int: ...
def pending() -> list[int]: ...
def synchronize(handle: int) -> Any: ...

# The same for several; if some fail, the first error is raised once all have ended.
def synchronize_all(handles: Iterable[int]) -> list[Any]: ...

# Starts operations on tensors that can be taken as they are (dense, contiguous, on the CPU or the GPU in use, of one of
# these classes and types) and keeps them; None for others, and nothing is done. An allreduce is in place and called
# `allreduce.<name>`.
@final
class PlainTensors:
    def __new__(cls, classes: list[type], strided: Any, dtypes: list[tuple[Any, int]]) -> PlainTensors: ...
    def allreduce(
        self,
        tensor: Any,
        name: str,
        op: int,
        prescale: float,
        postscale: float,
        process_set: int,
        priority: int,
        awaited: bool,
        wire: int | None = None,
    ) -> int | None: ...

# A rank works with one GPU. `use_gpu` opens it, unless there is one, and returns the number of the one in use;
# `prefer_gpu` names it for a rank that has to take part before it has brought a tensor.
def use_gpu(ordinal: int) -> int: ...
def prefer_gpu(ordinal: int) -> None: ...

# How to ask a framework, whose tensors are of a class, for the current stream of a GPU, and how to tell it that the
# current stream uses the tensors among some objects, in lists and tuples too.
def use_streams(tensor: type, current: Callable[[int], int], lend: Callable[..., None]) -> None: ...
def current_stream() -> int: ...
def cuda_available() -> bool: ...
def nccl_version() -> int: ...
def add_process_set(ranks: list[int]) -> int: ...
def remove_process_set(process_set: int) -> bool: ...
def process_sets() -> list[tuple[int, list[int]]]: ...
def start_timeline(path: str, mark_cycles: bool) -> None: ...
def stop_timeline() -> None: ...
def fail(text: str) -> None: ...

@final
class Inquiry:
    def next(self) -> int | None: ...

def inquiries() -> Inquiry: ...
def answer_inquiry(process_set: int, text: str) -> None: ...
