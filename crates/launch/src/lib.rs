//! Starting the ranks of a job, watching them, and leaving nothing behind.
//!
//! [`run`] is what `ronde run` does, [`mod@agent`] is what runs on every host:
//!
//! ```text
//! guardian          what the user started: one thread, passes signals on, waits           (guardian.rs)
//! └─ driver         rendezvous, output, decides what happens, one connection a host       (driver/)
//!    ├─ ronde agent --stdio  guardian and agent of this machine, over pipes               (agent/)
//!    │               ├─ rank 0 ─ whatever it starts
//!    │               └─ rank 1 ─ …
//!    └─ ssh gpu2 …   the same on another host: what the driver and its agent say to each other is in wire/
//! ```
//!
//! Guardians and those they guard watch each other. If the guardian dies, the other kills everything below itself. If
//! that dies, the kernel hands its orphans to the guardian, which does the same. An agent whose driver is gone does it
//! too. So no single death, of whatever cause, leaves a process of the job running anywhere (descendants.rs).
//!
//! What can be decided without a process is decided in values: `hosts.rs` and `plan.rs` (who runs where), `routes.rs`
//! (who reaches whom how), `gpus.rs` (who uses which GPU), `course.rs` (what to do about exits and signals, and who failed first), `gathering.rs` (who
//! is waited for), `environment.rs` and `variables.rs` (what ranks find), `ssh/refusal.rs` (what ssh's words mean),
//! `lines.rs` and `label.rs` (how output looks), `report.rs` (what is said at the end).

mod agent;
mod asking;
mod container;
mod course;
mod descendants;
mod doctor;
mod doorway;
mod driver;
mod ending;
mod environment;
mod error;
mod fork;
mod gathering;
mod gpus;
mod guardian;
mod heard;
mod hostfile;
mod hosts;
mod label;
mod lines;
mod listening;
mod machine;
mod memory;
mod output;
mod over_ssh;
mod package;
mod plan;
mod probe;
mod program;
mod report;
mod routes;
mod secret_file;
mod setup_ssh;
mod signals;
mod ssh;
mod strangers;
mod variables;
mod wire;

use std::io::Write;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use agent::{AgentRequest, agent};
pub use descendants::{adopt_orphans, kill_all};
pub use doctor::{
    Check, Container, Doctor, Examination, Findings, Folder, Gpu, HostReport, Pair, Problem, Python, Reach,
    Report, Severity, doctor, problems, table,
};
pub use error::Error;
pub use hostfile::read_hostfile;
pub use hosts::{Host, Seat, assign, parse_hosts};
pub use label::Labels;
pub use over_ssh::{OverSsh, OverSshError, over_ssh};
pub use package::{fingerprint, own_package};
pub use plan::{Request, Ssh, Talk, Task, Waiting};
pub use report::is_unicode;
pub use setup_ssh::{SetupSsh, setup_ssh};
pub use signals::Signals;
pub use ssh::{Refusal, RefusalKind};

/// Runs a job and returns the status to exit with: 0, or that of the rank that failed first.
///
/// Errors are those found before anything was started. Must be called while the process has a
/// single thread, since it forks.
pub fn run(request: Request) -> Result<u8, Error> {
    if request.command.is_empty() {
        return Err(Error::NoCommand);
    }
    // What needs no host is checked before there are two processes.
    if request.waiting.is_none()
        && let Some(hosts) = &request.hosts
    {
        assign(hosts, request.np)?;
    }
    // Whoever calls a function through us holds the other end of our input, and nobody else would end the job for it.
    let lifeline = match &request.task {
        Some(_) => guardian::Lifeline::Stdin,
        None => guardian::Lifeline::None,
    };
    let mps_folder = gpus::mps::folder()?;
    let given = mps_folder.clone();
    let status = guardian::guard("driver", lifeline, |guardian| driver::drive(request, given, guardian));
    // Only now nobody is left who could write there. Most often there is none.
    let _ = std::fs::remove_dir_all(mps_folder);
    status
}

/// Shows an error; returns the status for it.
fn fail(error: &Error) -> u8 {
    let _ = std::io::stderr().write_all(error.render().as_bytes());
    1
}

/// Says something if that is possible at once.
fn last_words(text: &str) {
    let stderr = rustix::stdio::stderr();
    let mut waits = [PollFd::new(&stderr, PollFlags::OUT)];
    if matches!(poll(&mut waits, Some(&Timespec::default())), Ok(1..)) {
        let _ = rustix::io::write(stderr, text.as_bytes());
    }
}
