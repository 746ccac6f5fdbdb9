//! Starting the ranks of a job, watching them, and leaving nothing behind.
//!
//! [`run`] is what `ronde run` does. It becomes two processes, each a child subreaper:
//!
//! ```text
//! guardian   what the user started: one thread, passes signals on, waits        (guardian.rs)
//! └─ agent   rendezvous, output, the ranks' parent, decides what happens        (agent.rs)
//!    ├─ rank 0 ─ whatever it starts
//!    └─ rank 1 ─ …
//! ```
//!
//! They watch each other. If the guardian dies, the agent kills everything below itself. If the
//! agent dies, the kernel hands its orphans to the guardian, which does the same. So no single
//! death, of whatever cause, leaves a process of the job running (descendants.rs).
//!
//! What can be decided without a process is decided in values: `hosts.rs` (who runs where),
//! `course.rs` (what to do about exits and signals, and who failed first), `gathering.rs` (who is
//! waited for), `lines.rs` and `label.rs` (how output looks), `report.rs` (what is said at the
//! end).

mod agent;
mod course;
mod descendants;
mod ending;
mod error;
mod fork;
mod gathering;
mod guardian;
mod hosts;
mod label;
mod lines;
mod memory;
mod output;
mod plan;
mod program;
mod report;
mod secret_file;
mod signals;
mod spawn;
mod variables;

pub use error::Error;
pub use hosts::{Host, Seat, assign, parse_hosts};
pub use label::Labels;
pub use plan::{Request, Talk};

/// Runs a job and returns the status to exit with: 0, or that of the rank that failed first.
///
/// Errors are those found before anything was started. Must be called while the process has a
/// single thread, since it forks.
pub fn run(request: Request) -> Result<u8, Error> {
    let plan = plan::Plan::make(request)?;
    guardian::guard(|guardian| agent::serve(plan, guardian))
}
