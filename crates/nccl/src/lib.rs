//! NCCL, opened at run time: collectives between GPUs.
//!
//! | Module | What it is |
//! |---|---|
//! | `functions` | NCCL's functions, types and numbers, as its C interface has them |
//! | [`Library`] | a copy of NCCL that was found and is new enough; `search` knows where copies lie |
//! | [`Communicator`] | this rank's place among the GPUs of a set; [`Launch`] starts collectives on a stream of it |
//! | `call`, `elements` | one collective as a value, and what of our types and reductions NCCL knows |
//! | [`Error`], `cause` | what went wrong, for whom, and what usually causes it |
//!
//! Streams and addresses of device memory are plain numbers here, so this crate needs nothing of CUDA; whoever calls
//! it makes the right device's context current first. When calls must come in which order on which rank is decided
//! above, too: NCCL wants the same order of launches on all ranks, across all communicators they share.

mod call;
mod cause;
mod communicator;
mod elements;
mod error;
mod functions;
mod launch;
mod library;
mod search;
#[cfg(test)]
mod tests;

pub use call::Group;
pub use communicator::Communicator;
pub use elements::{Op, knows};
pub use error::{Error, Who};
pub use functions::UniqueId;
pub use launch::Launch;
pub use library::{Library, Version};
