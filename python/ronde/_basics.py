"""What Horovod's framework modules have in common: joining a job, one's place in it, and what this build can do.

``HorovodBasics`` carries the names as methods because that is how other packages import them; the framework modules
export the methods of the one instance here.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from ronde import _core, _job, process_sets

__all__ = ["HorovodBasics", "basics"]


class HorovodBasics:
    """The functions that do not depend on a framework.

    >>> HorovodBasics().mpi_built()
    False
    """

    def __init__(self, *_where: Any) -> None:
        """Take, and need nothing of, the folder and the library that Horovod's own modules pass here."""

    def init(self, comm: list[int] | None = None, process_sets: Any = None) -> None:
        """Join the job that started this process; without one, become a job of size 1.

        ``process_sets`` is a list of :class:`ProcessSet` to register, the same on every rank, or ``"dynamic"``, which
        allows ``add_process_set`` later. ``comm`` is for MPI: a communicator is refused, and a list of ranks means
        nothing here, because the launcher decides who is in the job. Does nothing if this process has joined already.
        """
        if comm is not None and not isinstance(comm, list):
            raise ValueError("comm is a list of ranks or None; this build has no MPI, so it takes no communicators")
        sets, dynamic = _sets.check_for_init(process_sets)
        if dynamic:
            os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        if _core.is_initialized():
            return
        _job.init([list(item.ranks or ()) for item in sets], dynamic)
        _sets.job_started(sets)
        if comm and sorted(comm) != list(range(self.size())):
            warnings.warn(
                f"comm lists ranks {comm}, but the job has {self.size()}; to work on some of them use a ProcessSet",
                stacklevel=2,
            )

    def shutdown(self) -> None:
        """Leave the job. ``init`` may be called again afterwards."""
        _job.shutdown()
        _sets.job_ended()

    def is_initialized(self) -> bool:
        """Tell whether this process is in a job."""
        return _core.is_initialized()

    def rank(self) -> int:
        """Return the number of this process in the job."""
        return _core.place()[0]

    def size(self) -> int:
        """Return the number of processes in the job."""
        return _core.place()[1]

    def local_rank(self) -> int:
        """Return the number of this process among those of its host; often the GPU to use."""
        return _core.place()[2]

    def local_size(self) -> int:
        """Return the number of processes of the job on this host."""
        return _core.place()[3]

    def cross_rank(self) -> int:
        """Return the number of this host among those that have a process with the same local rank."""
        return _core.place()[4]

    def cross_size(self) -> int:
        """Return the number of hosts that have a process with the same local rank."""
        return _core.place()[5]

    def is_homogeneous(self) -> bool:
        """Tell whether every host has the same number of processes."""
        return _core.is_homogeneous()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Record a timeline into a file, written by rank 0. ``HOROVOD_TIMELINE=DYNAMIC`` has to be set at init."""
        _core.start_timeline(os.fspath(file_path), mark_cycles)

    def stop_timeline(self) -> None:
        """End the recording, if there is one."""
        _core.stop_timeline()

    def mpi_threads_supported(self) -> bool:
        """Raise ``ValueError``: the question is about MPI, which is not used."""
        raise ValueError("MPI is not used by this build, so there is nothing to say about its threads")

    def mpi_enabled(self) -> bool:
        """Tell whether MPI carries the job: no."""
        return False

    def mpi_built(self) -> bool:
        """Tell whether MPI could carry the job: no."""
        return False

    def gloo_enabled(self) -> bool:
        """Say yes: scripts ask this to learn whether a job works without MPI, and it does."""
        return True

    def gloo_built(self) -> bool:
        """Say yes, for the reason given at ``gloo_enabled``."""
        return True

    def nccl_built(self) -> int:
        """Return the version of NCCL that would move tensors between GPUs, as in 22807; 0 if there is none."""
        return _core.nccl_version()

    def ddl_built(self) -> bool:
        """Tell whether IBM's DDL is in use: no."""
        return False

    def ccl_built(self) -> bool:
        """Tell whether Intel's oneCCL is in use: no."""
        return False

    def cuda_built(self) -> bool:
        """Tell whether collectives can run on CUDA devices of this machine: whether its driver can be used."""
        return _core.cuda_available()

    def rocm_built(self) -> bool:
        """Tell whether collectives run on ROCm devices: no."""
        return False


# The argument of `init` has the module's name.
_sets = process_sets

basics = HorovodBasics()
