"""A rank that sums four bytes over all ranks and says so, through Open MPI's library and nothing else.

The library is called as C calls it, so that Python's own start is all that this adds to `first_mpi.c`; packages such as
mpi4py would add their import. Open MPI's handles are the addresses of objects with these names (its `mpi.h`).
"""

from __future__ import annotations

import ctypes

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(name: str) -> ctypes.c_void_p:
    """Return what C calls MPI_COMM_WORLD and the like."""
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))


def call(name: str, *arguments: object) -> None:
    """Call a function of the library, which says by its status whether it worked."""
    status = getattr(mpi, name)(*arguments)
    if status != 0:
        raise SystemExit(f"{name} failed with status {status}")


world = handle("ompi_mpi_comm_world")
call("MPI_Init", None, None)
rank, size = ctypes.c_int(), ctypes.c_int()
call("MPI_Comm_rank", world, ctypes.byref(rank))
call("MPI_Comm_size", world, ctypes.byref(size))
value, total = ctypes.c_float(rank.value + 1), ctypes.c_float()
floats, summed = handle("ompi_mpi_float"), handle("ompi_mpi_op_sum")
call("MPI_Allreduce", ctypes.byref(value), ctypes.byref(total), 1, floats, summed, world)
print(f"first allreduce: rank {rank.value} of {size.value}, sum {total.value:.0f}", flush=True)
call("MPI_Finalize")
