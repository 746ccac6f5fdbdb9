"""Process sets: some of the job's ranks, which exchange tensors among themselves.

Every collective takes one; ``global_process_set``, all ranks, is what it takes by default. A set is given to ``init``
or registered later with ``add_process_set``, on all ranks of the job either way, and gets a number by which the engine
knows it. Besides the number a :class:`ProcessSet` keeps what has to run in step on its members and nowhere else: the
count of collectives that were given no name, and the names that optimizers have taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ronde import _core

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

# Told the number of a set when its count of unnamed collectives begins anew, by plug-ins that count theirs themselves.
counted_elsewhere: list[Callable[[int], None]] = []


def _rank_list(ranks: Any) -> list[int]:
    try:
        found = sorted(ranks)
    except TypeError:
        found = [ranks]
    if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in found):
        raise ValueError(f"a process set is made from a list of ranks, not from {ranks!r}")
    return found


class ProcessSet:
    """A set of ranks, given as a list.

    >>> evens = ProcessSet([2, 0])
    >>> evens.ranks, evens.process_set_id
    ([0, 2], None)
    """

    process_set_id: int | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Sequence[int] | Any) -> None:
        self._ranks: list[int] | None = None
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
        else:
            self._ranks = _rank_list(ranks_or_comm)
        self._start_over()

    def _start_over(self) -> None:
        """Be as on every other member at the moment the set is registered."""
        self.names_of_optimizers: list[set[str]] = []
        self.count_anew()

    def count_anew(self) -> None:
        """Count unnamed collectives from 0 again, at a moment when every member does."""
        self.unnamed = itertools.count()
        if self.process_set_id is not None:
            for start_over in counted_elsewhere:
                start_over(self.process_set_id)

    def _register(self, number: int) -> None:
        self.process_set_id = number
        self._start_over()
        _registered[number] = self

    def _invalidate(self) -> None:
        if self.process_set_id is not None:
            _registered.pop(self.process_set_id, None)
        self.process_set_id = None

    @property
    def ranks(self) -> list[int] | None:
        """The members, by their rank in the job; ``None`` where they are not known."""
        return self._ranks

    def size(self) -> int | None:
        """Return the number of members; ``None`` as long as the set is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int:
        """Return the place of this process in the set, from 0 on; a ``ValueError`` for those outside."""
        own = _core.place()[0]
        ranks = self.ranks or []
        if self.process_set_id is None or own not in ranks:
            raise ValueError(f"rank {own} is not in {self}")
        return ranks.index(own)

    def included(self) -> bool | None:
        """Tell whether this process is a member; ``None`` where the ranks are not known."""
        return None if self.ranks is None else _core.place()[0] in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __repr__ = __str__


class _AllRanks(ProcessSet):
    """The set that exists without being asked for, as long as there is a job."""

    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    @property
    def ranks(self) -> list[int] | None:
        """All ranks of the job; ``None`` outside of one."""
        return list(range(_core.place()[1])) if _core.is_initialized() else None

    def size(self) -> int | None:
        """Return the number of ranks in the job; ``None`` outside of one."""
        return _core.place()[1] if _core.is_initialized() else None

    def rank(self) -> int:
        """Return the rank of this process."""
        return _core.place()[0]

    def included(self) -> bool | None:
        """Say yes, inside a job."""
        return True if _core.is_initialized() else None


global_process_set = _AllRanks()

# The sets of this job besides the global one, by number.
_registered: dict[int, ProcessSet] = {}


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set of ranks. Every rank of the job has to call this, also those outside of the set.

    Needs ``init(process_sets="dynamic")`` or ``HOROVOD_DYNAMIC_PROCESS_SETS=1``; ``ValueError`` without, or for a set
    that exists already.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.ranks is None:
        raise NotImplementedError("a process set cannot be made from an MPI communicator; give its ranks as a list")
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} is registered already")
    process_set._register(_core.add_process_set(process_set.ranks))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set; collective like ``add_process_set``. False for the global set and for unregistered ones."""
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    removed = _core.remove_process_set(number)
    if removed:
        process_set._invalidate()
    return removed


def check_for_init(process_sets: Any) -> tuple[list[ProcessSet], bool]:
    """Read the ``process_sets`` argument of ``init``: the sets to register, and whether more may follow."""
    if process_sets is None:
        return [], False
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f'process_sets is a list of ProcessSet or the word "dynamic", not {process_sets!r}')
        return [], True
    sets = list(process_sets)
    for item in sets:
        if not isinstance(item, ProcessSet):
            raise ValueError(f"process_sets holds a {type(item).__name__}; expected ProcessSet")
        if item.mpi_comm is not None:
            raise NotImplementedError("process sets made from MPI communicators need MPI; give ranks as lists")
    ranks = [tuple(item.ranks or ()) for item in sets]
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"the same process set is listed twice: {[list(members) for members in ranks]}")
    return sets, False


def job_started(sets: Sequence[ProcessSet]) -> None:
    """Note the numbers that the engine gave to the sets of ``init``, and start every count from 0."""
    global_process_set._start_over()
    numbers = {tuple(ranks): number for number, ranks in _core.process_sets() if number != 0}
    for item in sets:
        item._register(numbers[tuple(item.ranks or ())])


def job_ended() -> None:
    """Forget all numbers: they meant something to the job that is over."""
    for item in list(_registered.values()):
        item._invalidate()
