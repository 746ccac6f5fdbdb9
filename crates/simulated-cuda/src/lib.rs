//! CUDA's driver, simulated: its functions on host memory, with threads as streams. For tests only; nothing that
//! ships depends on it.
//!
//! [`lookup`] answers for the names of the driver's functions as `dlsym` does for `libcuda.so.1`, so whoever
//! takes a table of function pointers runs unchanged where there is no GPU. What matters to such code is kept:
//! - Work is asynchronous, in order inside a stream, and in no order between streams but by events and by
//!   words in memory. Only calls that block in CUDA block here; copies from or to pageable memory are such.
//! - Kernels are ours, known by their entry names, and give the bits of `ronde_collective::kernel`. Thread
//!   blocks run in another order than their table has, since nothing may depend on it.
//! - Handles are numbers that are never used again: a freed one is an error, not a crash. Memory that a kernel or
//!   a copy may not touch (freed, of another GPU, never the driver's) is `CUDA_ERROR_ILLEGAL_ADDRESS`, which
//!   stays the answer of that device from then on, as it does in CUDA. Fresh memory is filled with `0xCD`, freed
//!   memory with `0xDD`.
//! - Contexts are current a thread at a time. A call without one is refused where CUDA's description of the function
//!   names that error; waiting for words, writing them and asking for events work without.
//! - Memory of `cuMemCreate` is a `memfd`, so that its descriptor can be mapped by other processes.
//!
//! What is left out: device addresses are host addresses; the default stream waits for no other stream; frees do
//! not wait for work under way; there are no per-thread default streams and no kernels but ours; nothing is captured into
//! graphs, a test only says that a stream is ([`Simulation::capture`]).
//!
//! There is one driver a process, so there is one [`Simulation`] a process: a test that reads counters, makes
//! calls fail or holds streams takes it and has the driver for itself until it is dropped.
//!
//! # How it is laid out
//! `driver` is the list of all functions with CUDA's signatures; each leads to a function of the module that
//! its subject names. `control` counts the calls and holds what tests ask for. `ranges` knows every address
//! that belongs to the driver, `handles` everything else that is given out.

mod capture;
mod context;
mod control;
mod device;
mod driver;
mod event;
mod handles;
mod kernel;
mod launch;
mod memory;
mod module;
mod physical;
mod pieces;
mod pointer;
mod pool;
mod ranges;
mod status;
mod stream;
#[cfg(test)]
mod testing;
mod word;

pub use control::{Live, Simulation};
pub use driver::lookup;
