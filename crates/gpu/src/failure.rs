//! What the engine is told when a GPU fails, here or on another rank.

use std::fmt;

use ronde_collective::Group;
use ronde_engine::Error;

/// Room for what a member says about its failure, so that all say equally much.
const SAID: usize = 400;

/// A failure of this rank's GPU ends the set: the members are no longer level.
pub(crate) fn of_cuda(error: ronde_cuda::Error) -> Error {
    Error::ShutDown(format!("this rank's GPU failed: {error}"))
}

/// The same before anything was started. That a stream is captured is the caller's mistake.
pub(crate) fn of_start(error: ronde_cuda::Error) -> Error {
    match error {
        ronde_cuda::Error::Capturing => Error::Invalid(error.to_string()),
        other => of_cuda(other),
    }
}

/// A failure inside a call of NCCL, or of what is asked while waiting in one.
pub(crate) struct Trouble(pub(crate) Error);

impl From<ronde_nccl::Error> for Trouble {
    fn from(error: ronde_nccl::Error) -> Trouble {
        Trouble(Error::ShutDown(error.to_string()))
    }
}

impl From<ronde_collective::Error> for Trouble {
    fn from(error: ronde_collective::Error) -> Trouble {
        Trouble(error.into())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether a step worked everywhere.
pub(crate) enum Verdict {
    /// On all members.
    Fine,
    /// Some had too little memory, and what the first of them says.
    Short(String),
    /// It failed, and what the first member says.
    Failed(String),
}

impl Verdict {
    /// For steps that have no other way.
    pub(crate) fn fine(self) -> Result<(), Error> {
        match self {
            Verdict::Fine => Ok(()),
            Verdict::Short(text) | Verdict::Failed(text) => Err(Error::ShutDown(text)),
        }
    }
}

/// Has the members of a group agree on whether a step worked, so that none waits for one that gave up. Collective.
pub(crate) fn agree(group: &mut Group, failure: Option<&ronde_cuda::Error>) -> Result<Verdict, Error> {
    let mut said = vec![0u8; SAID];
    if let Some(error) = failure {
        said[0] = if error.is_out_of_memory() { 1 } else { 2 };
        let text = error.to_string();
        let len = text.len().min(SAID - 1);
        said[1..=len].copy_from_slice(&text.as_bytes()[..len]);
    }
    let all = group.gather_small(&said)?;
    let Some(failed) = all.iter().position(|said| said[0] != 0) else { return Ok(Verdict::Fine) };
    let text = String::from_utf8_lossy(&all[failed][1..]);
    let rank = group.members()[failed];
    let host = group.host_name(failed);
    let text = format!("the GPU of rank {rank} on {host} failed: {}", text.trim_end_matches('\0'));
    Ok(if all.iter().all(|said| said[0] < 2) { Verdict::Short(text) } else { Verdict::Failed(text) })
}
