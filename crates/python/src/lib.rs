//! The extension module `ronde._core`: what the Python packages call, and nothing they could do
//! themselves.
//!
//! Glue without logic. [`describe`] turns an array into (address, shape, type); [`operations`] takes such numbers and puts
//! operations in flight in the engine of this process, which [`session`] holds; [`outcome`] waits and hands results over;
//! [`tensors`] does both for the plainest of PyTorch's tensors, [`pending`] keeps tensors alive meanwhile, and [`gpu`] knows the
//! GPU and the framework's streams on it; [`bridge`] lets plug-ins of other frameworks do all that without Python; [`error`] is
//! the one place where a failure becomes a Python exception. Which arrays are accepted and what kind of array comes back is
//! decided in `python/ronde`. The module is private to the package: its functions trust the addresses they get.

mod bridge;
mod describe;
mod dtype;
mod error;
mod exchange;
mod gpu;
mod operations;
mod outcome;
mod pending;
mod session;
mod tensors;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use super::bridge::bridge_table;
    #[pymodule_export]
    use super::describe::{describe_array, describe_dlpack};
    #[pymodule_export]
    use super::dtype::dtype_code;
    #[pymodule_export]
    use super::gpu::{cuda_available, current_stream, nccl_version, prefer_gpu, use_gpu, use_streams};
    #[pymodule_export]
    use super::operations::{
        add_process_set, enqueue_allgather, enqueue_allreduce, enqueue_alltoall, enqueue_barrier,
        enqueue_broadcast, enqueue_fault, enqueue_grouped_allreduce, enqueue_join, enqueue_reducescatter,
        poll, process_sets, remove_process_set,
    };
    #[pymodule_export]
    use super::outcome::wait;
    #[pymodule_export]
    use super::pending::{keep, pending, synchronize, synchronize_all};
    #[pymodule_export]
    use super::session::{
        Inquiry, after_fork_in_child, answer_inquiry, fail, init, inquiries, is_homogeneous, is_initialized,
        place, rank_and_size, shutdown, start_timeline, stop_timeline,
    };
    #[pymodule_export]
    use super::tensors::PlainTensors;

    #[pymodule_init]
    fn constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DTYPES", PyTuple::new(module.py(), super::dtype::names())?)
    }
}
