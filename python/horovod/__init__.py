"""The names that existing Horovod scripts import, served by Ronde.

``__version__`` is the Horovod release whose interface these names follow; Ronde's own is ``ronde.__version__``.
"""

from ronde._run import run

__all__ = ["__version__", "run"]

__version__ = "0.28.1"
