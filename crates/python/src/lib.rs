//! The extension module `ronde._core`: what the Python packages call, and nothing they could do
//! themselves.
//!
//! Glue without logic. [`describe`] turns an array into (address, count, type); [`collectives`]
//! takes such numbers, lets go of the interpreter and calls the [`job`] of this process; [`error`]
//! is the one place where a failure becomes a Python exception. Which arrays are accepted and what
//! kind of array comes back is decided in `python/ronde/_arrays.py`. The module is private to the
//! package: its functions trust the addresses they get.

mod collectives;
mod describe;
mod dtype;
mod error;
mod job;
mod memory;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use super::collectives::{
        allgather, allreduce, alltoall, alltoall_counts, barrier, broadcast, gather_counts, reducescatter,
    };
    #[pymodule_export]
    use super::describe::{describe_array, describe_dlpack};
    #[pymodule_export]
    use super::dtype::dtype_code;
    #[pymodule_export]
    use super::job::{after_fork_in_child, init, is_initialized, place, rank_and_size, shutdown};

    #[pymodule_init]
    fn constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DTYPES", PyTuple::new(module.py(), super::dtype::names())?)
    }
}
