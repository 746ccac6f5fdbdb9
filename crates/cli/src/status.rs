//! What the process exits with. Most wrong usage is found by clap, which exits with 2 itself.

use std::process::ExitCode;

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// All is well.
    Success,
    /// Something that was to be done could not be.
    Failure,
    /// The command line lacks something.
    Usage,
    /// The job's own status: that of the rank that failed first, or 128 and a signal's number.
    Job(u8),
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        match status {
            Status::Success => ExitCode::SUCCESS,
            Status::Failure => ExitCode::FAILURE,
            Status::Usage => ExitCode::from(2),
            Status::Job(code) => ExitCode::from(code),
        }
    }
}
