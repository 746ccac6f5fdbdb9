"""What each collective is, as a value: its terms, the shape of its result, its adjoint, and how it takes a batch.

These are parameters of the primitive (:mod:`ronde.jax.primitive`), so programs with equal ones are compiled once. They
are made when a function is traced, and fix what is known then: this rank's place in the process set, and everybody's
rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ronde._collectives import Average, Sum

__all__ = ["Allgather", "Allreduce", "Alltoall", "Barrier", "Broadcast", "Collective", "Reducescatter", "Reduction"]


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective on a process set. Those whose results are as their operands need not say more."""

    # The number of the operation in the plug-in's interface, and its name to people.
    kind: ClassVar[int]
    title: ClassVar[str]

    name: str | None
    """Under which ranks find each other; ``None`` to be named by the program."""
    process_set: int

    @property
    def is_linear(self) -> bool:
        """Whether derivatives are another collective."""
        return True

    def results(self, operands: Sequence[Any]) -> list[Any]:
        """Return what comes of operands, both given by ``shape`` and ``dtype``."""
        return [_Shape(tuple(operand.shape), operand.dtype) for operand in operands]

    def adjoint(self) -> tuple[Collective, float]:
        """Return the collective that carries cotangents back, and a factor for its results."""
        return self, 1.0

    def batch_dimension(self, dimension: int) -> int:
        """Return where the dimension of a batch has to be, here and in the result."""
        return dimension

    def attributes(self) -> dict[str, Any]:
        """Return the terms as the plug-in library is told them."""
        return {
            "kind": np.int64(self.kind),
            "process_set": np.int64(self.process_set),
            "op": np.int64(Sum),
            "grouped": np.int64(0),
            "root": np.int64(0),
            "prescale": np.float64(1.0),
            "postscale": np.float64(1.0),
            "rows": np.array([], np.int64),
        }

    def called(self, suffix: str) -> Collective:
        """Return the same under another name, if it has one."""
        return self if self.name is None else dataclasses.replace(self, name=f"{self.name}.{suffix}")


@dataclasses.dataclass(frozen=True)
class _Shape:
    shape: tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True)
class Reduction(Collective):
    """A collective that computes with elements, instead of only moving them."""

    op: int
    prescale: float
    postscale: float

    @property
    def is_linear(self) -> bool:
        """Whether the result is a sum of what each member gives."""
        return self.op in (Average, Sum)

    def attributes(self) -> dict[str, Any]:
        """Return the terms as the plug-in library is told them."""
        factors = {"prescale": np.float64(self.prescale), "postscale": np.float64(self.postscale)}
        return {**super().attributes(), "op": np.int64(self.op), **factors}


@dataclasses.dataclass(frozen=True)
class Allreduce(Reduction):
    """Reduce arrays over all members, each with its like."""

    kind = 0
    title = "allreduce"

    grouped: bool

    def attributes(self) -> dict[str, Any]:
        """Return the terms as the plug-in library is told them."""
        return {**super().attributes(), "grouped": np.int64(self.grouped)}


@dataclasses.dataclass(frozen=True)
class Broadcast(Collective):
    """Everybody gets the root's."""

    kind = 2
    title = "broadcast"

    root: int
    is_root: bool

    def adjoint(self) -> tuple[Collective, float]:
        """Return the sum, of which only the root has a use."""
        total = Allreduce(self.name, self.process_set, Sum, 1.0, 1.0, grouped=False)
        return total, 1.0 if self.is_root else 0.0

    def attributes(self) -> dict[str, Any]:
        """Return the terms as the plug-in library is told them."""
        return {**super().attributes(), "root": np.int64(self.root)}


@dataclasses.dataclass(frozen=True)
class Barrier(Collective):
    """Everybody is there."""

    kind = 5
    title = "barrier"


class _OfRows:
    """Collectives that deal in rows, which a batch must leave in front."""

    rows: tuple[int, ...]

    def batch_dimension(self, dimension: int) -> int:
        """Return the place behind the rows."""
        del dimension
        return 1

    def attributes(self) -> dict[str, Any]:
        """Return the terms as the plug-in library is told them."""
        return {**super().attributes(), "rows": np.array(self.rows, np.int64)}  # type: ignore[misc]


@dataclasses.dataclass(frozen=True)
class Allgather(_OfRows, Collective):
    """Join the rows of all members."""

    kind = 1
    title = "allgather"

    rows: tuple[int, ...]
    position: int

    def results(self, operands: Sequence[Any]) -> list[Any]:
        """Return what comes of the operand."""
        [operand] = operands
        return [_Shape((sum(self.rows), *operand.shape[1:]), operand.dtype)]

    def adjoint(self) -> tuple[Collective, float]:
        """Return the sum of the cotangents of this member's rows."""
        return Reducescatter(self.name, self.process_set, Sum, 1.0, 1.0, self.rows, self.position), 1.0


@dataclasses.dataclass(frozen=True)
class Alltoall(_OfRows, Collective):
    """Every member sends an equal share of its rows to every member."""

    kind = 3
    title = "alltoall"

    rows: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Reducescatter(_OfRows, Reduction):
    """Reduce rows over all members, and share them out."""

    kind = 4
    title = "reducescatter"

    rows: tuple[int, ...]
    position: int

    def results(self, operands: Sequence[Any]) -> list[Any]:
        """Return what comes of the operand."""
        [operand] = operands
        return [_Shape((self.rows[self.position], *operand.shape[1:]), operand.dtype)]

    def adjoint(self) -> tuple[Collective, float]:
        """Return the rows that every member has a part in."""
        factor = self.prescale * self.postscale / (len(self.rows) if self.op == Average else 1)
        return Allgather(self.name, self.process_set, rows=self.rows, position=self.position), factor
