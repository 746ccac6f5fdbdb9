"""Horovod's launcher, for programs that call it."""

from ronde._run import run

__all__ = ["run"]
