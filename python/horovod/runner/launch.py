"""``horovodrun`` by the name of its module, for those who write ``python -m horovod.runner.launch``."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ronde._launcher import program

__all__ = ["run_commandline"]


def run_commandline() -> NoReturn:
    """Become ``horovodrun``, with the arguments of this process."""
    os.execv(program("horovodrun"), ["horovodrun", *sys.argv[1:]])


if __name__ == "__main__":
    run_commandline()
