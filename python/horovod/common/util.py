"""Horovod's questions about the installation, and small things that others borrow."""

from ronde._build import (
    ccl_built,
    check_installed_version,
    ddl_built,
    env,
    extension_available,
    gloo_built,
    gpu_available,
    mpi_built,
    nccl_built,
    num_rank_is_power_2,
    split_list,
)

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
