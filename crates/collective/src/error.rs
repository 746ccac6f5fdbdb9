//! What can go wrong while moving bytes. Errors are values that every rank of a group reports alike,
//! so they are `Clone`: a group that failed once answers every later call with the same first cause.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::types::{DType, ReduceOp};

/// Failure of a collective or of building the links it runs over.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A peer died, left, or could not be reached any more. Names the one that failed first.
    #[error("rank {rank}{} was lost: {reason}", on_host(.host))]
    PeerLost {
        /// Rank in the job.
        rank: usize,
        /// The host it ran on, if known.
        host: String,
        /// What was seen.
        reason: String,
    },
    /// No connection to a peer could be made.
    #[error("cannot reach rank {rank}{} at {address}: {reason}", on_host(.host))]
    Unreachable {
        /// Rank in the job.
        rank: usize,
        /// The host it runs on, if known.
        host: String,
        /// What was dialled.
        address: SocketAddr,
        /// Why it failed.
        reason: String,
    },
    /// The job's rendezvous is gone, so nobody can say who is alive.
    #[error("the job's rendezvous was lost: {0}")]
    RendezvousLost(String),
    /// The caller asked to stop waiting (Ctrl-C). The group cannot be used afterwards.
    #[error("interrupted while waiting for other ranks")]
    Interrupted,
    /// The arguments of a call do not fit together; nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// This reduction is not defined for this type.
    #[error("{op:?} is not defined for {dtype}")]
    Unsupported {
        /// The reduction asked for.
        op: ReduceOp,
        /// The element type given.
        dtype: DType,
    },
    /// The operating system refused something the links need.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: Arc<io::Error>,
    },
}

fn on_host(host: &str) -> String {
    if host.is_empty() { String::new() } else { format!(" on {host}") }
}

impl Error {
    /// Attaches what was being done to a system error.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::System { what, source: Arc::new(source) }
    }

    /// The same for the error type of direct system calls.
    pub(crate) fn errno(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
        move |errno| Error::System { what: what.into(), source: Arc::new(errno.into()) }
    }
}

/// Result of anything in this crate.
pub type Result<T> = std::result::Result<T, Error>;
