"""What a rank of ``horovod.run`` executes: ``python -m ronde._task`` takes a call, makes it, and leaves the outcome.

The launcher names two files in the environment, one with the call and one for the outcome. An exception ends this
process as it ends any script, so that the other ranks are told of it; only its traceback is not printed here, since the
caller shows it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from ronde import _call, _notebook_cell

PAYLOAD = "RONDE_TASK_PAYLOAD"
RESULT = "RONDE_TASK_RESULT"

# The exception that the caller will show.
_left: BaseException | None = None


def main() -> None:
    """Make the call; an exception that it raises passes through."""
    global _left
    # Taken out, so that no process that the function starts mistakes itself for this rank.
    payload, result = os.environ.pop(PAYLOAD, None), os.environ.pop(RESULT, None)
    if payload is None or result is None:
        sys.exit(f"{PAYLOAD} and {RESULT} are not set: this program is started by horovod.run, not by hand")
    sys.excepthook = _print_unless_left
    try:
        try:
            value = _call.unpack(Path(payload).read_bytes())()
        except SystemExit as exit_:
            if exit_.code not in (None, 0):
                raise
            value = None
        outcome = _call.returned(value, os.environ.get("HOROVOD_RANK", "0"))
    except BaseException as error:
        Path(result).write_bytes(_call.raised(error, hidden=[__file__, _notebook_cell.__file__]))
        _left = error
        raise
    Path(result).write_bytes(outcome)


def _print_unless_left(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    if value is not _left:
        sys.__excepthook__(kind, value, trace)


if __name__ == "__main__":
    main()
