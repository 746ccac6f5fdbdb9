//! Joins a job and runs its collectives.
//!
//! The layer between the data plane (`ronde-collective`), the job's bootstrap (`ronde-rendezvous`) and
//! whoever has tensors (`ronde-python`, `bench/probe`). [`Job`] is a process's membership in a job: blocking
//! collectives over all ranks, in the order they are called. Before bytes move, ranks compare what they are about to do
//! (`agreement.rs`), so that a mismatch is an error on every rank that names both sides, and the job lives on.

mod agreement;
mod error;
mod job;

pub use error::Error;
pub use job::{Job, MEMORY_DOMAIN};
pub use ronde_collective::{Interrupt, LinkKind};
pub use ronde_rendezvous::Place;
