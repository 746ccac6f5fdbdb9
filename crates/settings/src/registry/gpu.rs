//! GPUs: which way tensors on them take, and which libraries are opened for it.

use crate::variable::Kind::{Count, Path, Switch, Word};
use crate::variable::Status::{Accepted, Honoured};
use crate::variable::variables;

variables! {
    /// Which way tensors on GPUs take. `auto` decides by what is there: ranks that share a GPU meet in its memory, ranks
    /// with GPUs of their own through NCCL, both where both are the case, and the memory of the host is the way that is
    /// left where neither is possible. `device`, `nccl` and `host` insist on one way, and a job that cannot go it fails in
    /// words.
    GPU_PATH = "RONDE_GPU_PATH": Word(&["auto", "device", "nccl", "host"]), Some("auto"), Honoured;

    /// Has `ronde run` start NVIDIA's MPS on hosts where ranks outnumber GPUs, so that they compute side by side; the flag is
    /// `--mps`, the key of the configuration file `mps`.
    MPS = "RONDE_MPS": Switch, Some("0"), Honoured;

    /// The NCCL library to open. Without it, the copy that comes with the framework is taken, then the system's
    /// `libnccl.so.2`; `ronde run --check-build` shows which one that is.
    NCCL_LIBRARY = "RONDE_NCCL_LIBRARY": Path, None, Honoured;

    /// The library of CUDA's driver to open in place of the system's `libcuda.so.1`; for tests.
    CUDA_LIBRARY = "RONDE_CUDA_LIBRARY": Path, None, Honoured;

    /// How many streams NCCL works on: so many operations of one process set can be under way on the GPU at once, each
    /// with a communicator of its own, which costs memory of the GPU.
    NUM_NCCL_STREAMS = "HOROVOD_NUM_NCCL_STREAMS": Count, Some("1"), Honoured;

    /// Copy the tensors of a batch with one kernel on the GPU.
    BATCH_D2D_MEMCOPIES = "HOROVOD_BATCH_D2D_MEMCOPIES": Switch, Some("1"),
        Accepted("a batch is always packed by one kernel, and unpacked by one");

    /// Call an operation on the GPU done as soon as it is queued there.
    ENABLE_ASYNC_COMPLETION = "HOROVOD_ENABLE_ASYNC_COMPLETION": Switch, Some("0"),
        Accepted("that is how operations on GPUs always end: what comes after them on the stream waits, the script does not");
}
