"""What other packages ask about an installation of Horovod, and a few small things they borrow from it.

``horovod.common.util`` gives these names. Horovod is compiled for each framework, so the question which of them it
was built with is answered by running a process; here it is whether the framework is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from ronde._basics import basics
from ronde.exceptions import HorovodVersionMismatchError

__all__ = [
    "ccl_built",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

Item = TypeVar("Item")


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables (``None``: remove them) for the time of a block.

    >>> with env(RONDE_EXAMPLE="1"):
    ...     os.environ["RONDE_EXAMPLE"]
    '1'
    >>> "RONDE_EXAMPLE" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in kwargs}
    _set_variables(kwargs)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Tell whether a framework can be used: ``torch``, ``tensorflow`` or ``mxnet``."""
    found = importlib.util.find_spec(ext_base_name) is not None
    if verbose:
        print(f"Extension {ext_base_name} was {'' if found else 'NOT '}found.")
    return found


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Tell whether collectives of a framework run on the GPUs of this machine; PyTorch's do, if it has any."""
    del verbose
    return ext_base_name == "torch" and basics.cuda_built()


def mpi_built(verbose: bool = False) -> bool:
    """Tell whether MPI could carry a job: no."""
    del verbose
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Tell whether jobs work without MPI: yes."""
    del verbose
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    """Tell whether NCCL moves tensors between GPUs."""
    del verbose
    return basics.nccl_built() != 0


def ddl_built(verbose: bool = False) -> bool:
    """Tell whether IBM's DDL is in use: no."""
    del verbose
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Tell whether Intel's oneCCL is in use: no."""
    del verbose
    return basics.ccl_built()


def split_list(l: Sequence[Item], n: int) -> list[Sequence[Item]]:  # noqa: E741
    """Cut a list into ``n`` parts of nearly equal length, the longer ones first.

    >>> split_list([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    each, more = divmod(len(l), n)
    ends = [number * each + min(number, more) for number in range(n + 1)]
    return [l[start:end] for start, end in zip(ends, ends[1:])]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Tell whether a number of ranks is a power of two.

    >>> [number for number in range(9) if num_rank_is_power_2(number)]
    [1, 2, 4, 8]
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Raise ``HorovodVersionMismatchError`` if a module is loaded in another version than ``version``.

    >>> check_installed_version("ronde", importlib.import_module("ronde").__version__)
    """
    module: Any = importlib.import_module(name)
    if module.__version__ != version:
        raise HorovodVersionMismatchError(name, version, module.__version__) from exception
