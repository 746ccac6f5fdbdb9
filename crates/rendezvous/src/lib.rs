//! Who is in the job.
//!
//! One [`Server`] per job, in the launcher or started by `ronde rendezvous`; one [`Client`] in
//! every rank. Ranks join with an opaque *card* (whatever their peers need to reach them), get
//! everybody's cards once all have joined, can exchange more bytes later, and are told at once
//! who was lost and why. A rank that says goodbye is gone in order and alarms nobody.
//!
//! What happens is decided in `membership.rs`, which has neither sockets nor a clock. `server.rs`
//! and `client.rs` are the rim: threads, sealed TCP connections ([`ronde_trust::Sealed`]) and the
//! messages of `wire.rs`. `spec.rs` reads what the launcher left in the environment.
//!
//! Under other launchers (mpirun, srun, torchrun, …) rank 0 serves: `foreign` reads their variables, `meeting.rs` brings
//! the ranks together through `job_file.rs`, and `hosting.rs` keeps the server for as long as the process lives.

mod client;
mod error;
mod foreign;
mod hosting;
mod job_file;
mod loss;
mod meeting;
mod membership;
mod ranks;
mod server;
mod socket;
mod spec;
mod wire;

pub use client::Client;
pub use error::Error;
pub use foreign::tasks_per_node;
pub use hosting::hosted_descriptors;
pub use loss::Loss;
pub use meeting::{Meeting, meet};
pub use ranks::Ranks;
pub use server::{Departure, Server};
pub use spec::{JobSpec, Place, variable};
