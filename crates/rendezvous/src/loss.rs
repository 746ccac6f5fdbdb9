//! The news that somebody is gone who should not be.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A rank, or the rendezvous itself, is gone without a goodbye.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Which rank; `None` for the rendezvous itself.
    pub rank: Option<usize>,
    /// Where it ran, as it called that host; empty if it never said.
    pub host: String,
    /// What is known about why.
    pub reason: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rank, self.host.as_str()) {
            (Some(rank), "") => write!(f, "rank {rank} was lost: {}", self.reason),
            (Some(rank), host) => write!(f, "rank {rank} on {host} was lost: {}", self.reason),
            (None, host) => write!(f, "the job's rendezvous at {host} was lost: {}", self.reason),
        }
    }
}
