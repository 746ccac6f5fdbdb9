//! CUDA, opened at run time: devices, streams, events, memory, and kernels as text.
//!
//! Nothing is linked and no header is included: the driver's library is looked for when the first tensor on a GPU comes by, so
//! one build serves machines with and without one. What is here knows the element types and folds of the data plane and
//! nothing of ranks, names or Python; which collective runs how is decided in `ronde-gpu`.
//!
//! | Module | What it is |
//! |---|---|
//! | [`driver`] | the functions of the driver, looked up by name; its errors in words |
//! | [`device`] | one GPU: its primary context, which frameworks use as well, and what is kept with it |
//! | [`stream`] | work in order, and points in it |
//! | [`memory`] | host memory that the GPU reads, device memory, device memory that other processes map |
//! | [`kernel`] | our kernels, as text that the driver compiles |
//! | [`launch`] | pieces of work for them |

pub mod device;
pub mod driver;
pub mod kernel;
pub mod launch;
pub mod memory;
pub mod stream;

pub use device::Device;
pub use driver::{Error, Result, install, version};
pub use kernel::{Kernel, Piece};
pub use launch::Launcher;
pub use memory::{Imported, Pinned, Pooled, Registered, Scratch, Shared};
pub use stream::{Mark, Stream};
