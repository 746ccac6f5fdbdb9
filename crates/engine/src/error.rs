//! Everything that can go wrong with a job, as its callers see it. A failure reaches every pending and later operation of a
//! process set, so errors are `Clone`.

use std::sync::Arc;

/// Failure to join a job or to run a collective in it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The ranks do not agree on what to do; nothing was done, and the job goes on.
    #[error("{0}")]
    Mismatch(String),
    /// The caller asked to stop waiting.
    #[error("interrupted while waiting for other ranks")]
    Interrupted,
    /// The arguments do not fit together on this rank.
    #[error("{0}")]
    Invalid(String),
    /// A collective failed.
    #[error(transparent)]
    Collective(ronde_collective::Error),
    /// The job could not be joined.
    #[error(transparent)]
    Rendezvous(Arc<ronde_rendezvous::Error>),
    /// The engine was told to end, here or by the stall inspector, with work still to do.
    #[error("{0}")]
    ShutDown(String),
}

impl From<ronde_collective::Error> for Error {
    fn from(error: ronde_collective::Error) -> Error {
        use ronde_collective::Error as Collective;
        match error {
            Collective::Interrupted => Error::Interrupted,
            Collective::Invalid(_) | Collective::Unsupported { .. } => Error::Invalid(error.to_string()),
            other => Error::Collective(other),
        }
    }
}

impl From<ronde_rendezvous::Error> for Error {
    fn from(error: ronde_rendezvous::Error) -> Error {
        match error {
            ronde_rendezvous::Error::Interrupted => Error::Interrupted,
            other => Error::Rendezvous(Arc::new(other)),
        }
    }
}
