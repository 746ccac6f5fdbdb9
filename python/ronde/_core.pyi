"""The engine, on numbers; private to the package. Addresses must come from arrays that outlive the call."""

from typing import Any, Final

__all__ = [
    "DTYPES",
    "__version__",
    "after_fork_in_child",
    "allgather",
    "allreduce",
    "alltoall",
    "alltoall_counts",
    "barrier",
    "broadcast",
    "describe_array",
    "describe_dlpack",
    "dtype_code",
    "gather_counts",
    "init",
    "is_initialized",
    "place",
    "rank_and_size",
    "reducescatter",
    "shutdown",
]

__version__: Final[str]
# The names of the element types; a type's code is its place.
DTYPES: Final[tuple[str, ...]]

def init() -> None: ...
def shutdown() -> None: ...
def after_fork_in_child() -> None: ...
def is_initialized() -> bool: ...
def place() -> tuple[int, int, int, int, int, int]: ...
def rank_and_size() -> tuple[int, int]: ...
def dtype_code(name: str) -> int: ...
def describe_array(array: Any) -> tuple[int, int, int, bool] | None: ...
def describe_dlpack(capsule: Any) -> tuple[int, list[int], int, bool, bool]: ...
def allreduce(input: int, output: int, count: int, dtype: int, op: int, prescale: float, postscale: float) -> None: ...
def gather_counts(dtype: int, row_elements: int, rows: int) -> list[int]: ...
def allgather(input: int, output: int, dtype: int, counts: list[int], rank: int) -> None: ...
def broadcast(input: int, output: int, count: int, dtype: int, root: int) -> None: ...
def reducescatter(
    input: int,
    output: int,
    dtype: int,
    rows: list[int],
    rank: int,
    row_elements: int,
    op: int,
    prescale: float,
    postscale: float,
) -> None: ...
def alltoall_counts(dtype: int, row_elements: int, splits: list[int]) -> list[int]: ...
def alltoall(input: int, output: int, dtype: int, sent: list[int], received: list[int]) -> None: ...
def barrier() -> None: ...
