"""What travels between the caller of ``horovod.run`` and its ranks: the call goes there, an outcome comes back.

Both are pickles, written and read by this file alone, so that ``_run`` and ``_task`` need not agree on more than
:func:`pack` and :func:`unpack`, :func:`returned`, :func:`raised` and :func:`read`. They are pickled by ``cloudpickle``
where it is installed: functions and classes of the main script, of notebooks, lambdas and closures then travel as what
they are, not as a name to be looked up. Without it, what has an importable name travels by that name.

A call is unpickled by ranks that the launcher gave it to, an outcome by the caller, from a folder only it can write.
"""

from __future__ import annotations

import importlib
import io
import itertools
import os
import pickle
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from ronde.exceptions import HorovodInternalError

# The first byte of an outcome.
_RETURNED = b"R"
_RAISED = b"E"

# Whether this process is importing what a call consists of.
_unpacking = False


@dataclass(frozen=True)
class _Call:
    """A call on its way to a rank."""

    python: tuple[int, int]
    first: list[str]
    """Folders to import from before all others."""
    last: list[str]
    """Folders to import from after all others."""
    content: bytes
    """The pickled function and its arguments, apart, because unpickling it imports from those folders."""


@dataclass(frozen=True)
class Returned:
    """The function has returned."""

    content: bytes

    def value(self, rank: int) -> Any:
        """Return what the function returned."""
        try:
            return pickle.loads(self.content)
        except Exception as error:
            raise RuntimeError(f"the result of rank {rank} cannot be unpickled here: {in_words(error)}") from error


@dataclass(frozen=True)
class Raised:
    """The function has raised, or there was no calling it."""

    host: str
    words: str
    traceback: str
    follows: bool
    """Whether it only says that another rank was lost, or that the job was interrupted."""
    content: bytes | None

    def exception(self) -> BaseException | None:
        """Return the exception itself, where it can be had: some can be pickled but not unpickled."""
        try:
            error = None if self.content is None else pickle.loads(self.content)
        except Exception:
            return None
        return error if isinstance(error, BaseException) else None


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Make bytes of a call."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        content = dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        problem = f"{name} and its arguments cannot be sent to the ranks: {in_words(error)}"
        if _cloudpickle() is None:
            advice = "cloudpickle, which is not installed, can send more: pip install cloudpickle"
            raise ImportError(f"{problem}. {advice}", name="cloudpickle") from error
        raise pickle.PicklingError(problem) from error
    first, last = _search_path()
    return pickle.dumps(_Call(sys.version_info[:2], first, last, content))


def unpack(payload: bytes) -> Callable[[], Any]:
    """Make a call of the bytes again; imports what the function needs."""
    global _unpacking
    call = pickle.loads(payload)
    here = sys.version_info[:2]
    if call.python != here:
        theirs, ours = (".".join(map(str, version)) for version in (call.python, here))
        raise RuntimeError(
            f"the function comes from Python {theirs}, but {sys.executable} is Python {ours}, which may not understand "
            f"it; executable= names another one"
        )
    sys.path[:0] = [folder for folder in call.first if folder not in sys.path]
    sys.path += [folder for folder in call.last if folder not in sys.path]
    _unpacking = True
    try:
        function, args, kwargs = pickle.loads(call.content)
    except ModuleNotFoundError as error:
        where = os.environ.get("HOROVOD_HOSTNAME", "this host")
        raise ModuleNotFoundError(
            f"{error}: the function needs it, but {sys.executable} on {where} cannot find it", name=error.name
        ) from error
    finally:
        _unpacking = False
    return lambda: function(*args, **kwargs)


def is_unpacking() -> bool:
    """Tell whether this process is importing what a call consists of."""
    return _unpacking


def returned(value: Any, rank: str) -> bytes:
    """Make bytes of the outcome that a function has returned."""
    try:
        return _RETURNED + dumps(value)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"rank {rank} cannot send back what the function returned, a {kind}: {in_words(error)}"
        ) from None


def raised(error: BaseException, hidden: Sequence[str]) -> bytes:
    """Make bytes of the outcome that a function has raised; the frames of the files ``hidden`` tell nobody anything."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (*hidden, __file__):
        trace = trace.tb_next
    try:
        content = dumps(error)
    except Exception:
        content = None
    outcome = Raised(
        host=os.environ.get("HOROVOD_HOSTNAME", "this host"),
        words=in_words(error),
        traceback="".join(traceback.format_exception(type(error), error, trace)),
        follows=isinstance(error, (HorovodInternalError, KeyboardInterrupt)),
        content=content,
    )
    return _RAISED + pickle.dumps(outcome)


def read(outcome: bytes) -> Returned | Raised | None:
    """Make an outcome of the bytes again; ``None`` if they are not whole, since their rank was killed."""
    kind, content = outcome[:1], outcome[1:]
    if kind == _RETURNED:
        return Returned(content)
    try:
        found = pickle.loads(content) if kind == _RAISED else None
    except Exception:
        return None
    return found if isinstance(found, Raised) else None


def _cloudpickle() -> Any:
    """Return the module, imported when it is first needed, or ``None`` if it is not there."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def dumps(value: Any) -> bytes:
    """Pickle a value as calls and outcomes are pickled."""
    cloudpickle = _cloudpickle()
    buffer = io.BytesIO()
    (_ByName if cloudpickle is None else cloudpickle.Pickler)(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _ByName(pickle.Pickler):
    """Pickles what ranks can import, and refuses what only the main script of this process has."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (FunctionType, type)) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is part of the main script, which ranks do not import")
        return NotImplemented


def _search_path() -> tuple[list[str], list[str]]:
    """Return where this process imports from before and after what every Python has of its own.

    Before it are the folder of the script and ``PYTHONPATH``. The packages of the installation are left out: a rank's
    Python has its own.
    """
    standard = sysconfig.get_path("stdlib")
    archive = str(Path(standard).with_name(f"python{sys.version_info[0]}{sys.version_info[1]}.zip"))
    folders = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100
    first = list(itertools.takewhile(lambda folder: folder not in (archive, standard), folders))
    others = (folder for folder in folders[len(first) :] if folder != archive and not folder.startswith(standard))
    last = [folder for folder in others if not folder.endswith("-packages")]
    return first, last


def in_words(error: BaseException) -> str:
    """Return an exception as the last line of its traceback shows it."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()
