"""What a collective raises, in the classes that MXNet's users catch.

An error that comes up in the background is kept by MXNet, as text, with the arrays that the operation should have
written, and raised where somebody waits for them. MXNet chooses the class by the first word of the text, among those
registered here; see ``crates/mxnet/src/completion.rs``, which writes that word, and one long line after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mxnet.base import MXNetError, register_error

from ronde.exceptions import HorovodInternalError

__all__ = ["CollectiveArgumentError", "CollectiveError", "as_mxnet_raises"]


def _in_words(message: str, name: str) -> str:
    return message.removeprefix(f"{name}: ").replace("\u2028", "\n")


class CollectiveError(MXNetError, HorovodInternalError):
    """A collective did not come about: a rank was lost, the ranks disagree, or there is no job."""

    def __init__(self, message: str) -> None:
        super().__init__(_in_words(message, "HorovodInternalError"))


class CollectiveArgumentError(MXNetError, ValueError):
    """The arguments of this rank are wrong, and it turned out only when the operation's turn came."""

    def __init__(self, message: str) -> None:
        super().__init__(_in_words(message, "HorovodArgumentError"))


register_error("HorovodInternalError", CollectiveError)
register_error("HorovodArgumentError", CollectiveArgumentError)


@contextlib.contextmanager
def as_mxnet_raises() -> Iterator[None]:
    """Raise the engine's errors in the class in which they come out of MXNet's queue."""
    try:
        yield
    except HorovodInternalError as error:
        raise CollectiveError(str(error)) from None
