"""The names that existing Horovod scripts import, served by Ronde.

``__version__`` is the Horovod release whose interface these names follow; Ronde's own is ``ronde.__version__``.

Importing a package of Horovod also binds modules in it, and other libraries rely on that: they import ``horovod.torch``
alone and go on with ``horovod.torch.mpi_ops``. So the packages here import the same modules.
"""

from horovod import common as common
from horovod import runner as runner
from ronde._run import run

__all__ = ["__version__", "run"]

__version__ = "0.28.1"
