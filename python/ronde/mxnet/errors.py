"""What a collective raises, in the classes that MXNet's users catch.

An error that comes up in the background is kept by MXNet, as text, with the arrays that the operation should have
written, and raised where somebody waits for them. MXNet chooses the class by the first word of the text, among those
registered here; see ``crates/mxnet/src/completion.rs``, which writes that word, and one long line after it.
"""

from __future__ import annotations

from mxnet.base import MXNetError, register_error

from ronde.exceptions import HorovodInternalError

__all__ = ["CollectiveArgumentError", "CollectiveError"]


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
