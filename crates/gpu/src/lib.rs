//! Runs collectives on tensors in the memory of GPUs: the engine's executor for CUDA.
//!
//! Which way a process set's tensors take is decided by fact, once, when the set first has some ([`layout`]): ranks that share a
//! GPU meet inside its memory ([`peers`]), GPUs among each other through NCCL (`between`), and through the host's memory only
//! where neither is possible (`staged`), which is said once. Everything is given to streams of the engine's own, behind the
//! point at which the framework's stream has made the tensors; the framework's stream then waits for the point at which the
//! results are there. The host waits for neither.
//!
//! | Module | What it is |
//! |---|---|
//! | `executor` | [`Gpu`]: the GPU of this rank, and the worker of one process set on it |
//! | [`layout`] | who shares a GPU with whom, and which way follows from that |
//! | `point` | points in streams, as the engine knows them |
//! | `path` | what every way has to do |
//! | `spans` | a batch as one long tensor, and the parts of it that lie in memory |
//! | `packing` | brings tensors together in buffers and apart again, as what travels |
//! | [`peers`] | collectives of the ranks on one GPU |
//! | `between` | those between GPUs, by NCCL |
//! | `both` | those of several ranks on each of several GPUs |
//! | `alone` | those of a rank by itself |
//! | `staged` | those through the host |
//! | `stand_in` | memory in the place of tensors that a rank does not have since it has joined |
//! | `results` | memory for results whose size only the ranks together know |

mod alone;
mod between;
mod both;
mod executor;
mod failure;
pub mod layout;
mod packing;
mod path;
mod peers;
mod point;
mod results;
mod spans;
mod staged;
mod stand_in;

pub use executor::Gpu;
