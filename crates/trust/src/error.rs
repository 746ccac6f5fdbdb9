//! What can go wrong between two processes that should trust each other.

use std::io;
use std::path::PathBuf;

/// Why a secret could not be had or a connection is not to be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer says that our proof is wrong.
    #[error(
        "the peer rejected our proof of the job secret: it belongs to another job, or serves another purpose"
    )]
    Rejected,
    /// The peer sent a proof that does not hold.
    #[error(
        "the peer did not prove knowledge of the job secret: it is of another job, or wants something else"
    )]
    Unproven,
    /// What arrived is not our handshake at all.
    #[error("the peer does not speak Ronde's handshake")]
    NotOurs,
    /// A message failed authentication after the handshake, or is malformed.
    #[error("a message was damaged or forged on the way")]
    Tampered,
    /// A message is longer than the receiver allows.
    #[error("the peer sent a message longer than the {max} bytes allowed here")]
    TooLong {
        /// The receiver's limit.
        max: usize,
    },
    /// The peer closed the connection between two messages.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer closed the connection in the middle of a handshake or a message.
    #[error("the connection ended in the middle of {during}")]
    Truncated {
        /// "the handshake" or "a message".
        during: &'static str,
    },
    /// The peer took longer than the handshake may last.
    #[error("the peer did not finish the handshake in time")]
    TimedOut,
    /// The connection itself failed.
    #[error("the connection failed: {0}")]
    Io(#[source] io::Error),
    /// A secret is not 64 hexadecimal digits.
    #[error("a job secret is 64 hexadecimal digits, but this has {found}")]
    Format {
        /// What was found instead; never the text itself.
        found: String,
    },
    /// The file named as holding the secret cannot be read.
    #[error("cannot read the job secret from {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file named as holding the secret holds something else.
    #[error("{} does not hold a job secret: {found} instead of 64 hexadecimal digits", path.display())]
    NotASecret {
        /// The file.
        path: PathBuf,
        /// What was found instead; never the text itself.
        found: String,
    },
    /// The system gave no random bytes.
    #[error("the system gave no random bytes for a secret: {0}")]
    NoRandomness(String),
    /// The Noise library refused what we asked of it; a fault in this program.
    #[error("the Noise protocol failed: {0}")]
    Noise(String),
}

impl Error {
    /// Sorts an error of the stream into what it means for the one who waits on it.
    pub(crate) fn from_io(error: io::Error, during: &'static str) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::Truncated { during },
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock if during == "the handshake" => {
                Error::TimedOut
            }
            _ => Error::Io(error),
        }
    }
}

/// What kept a connection from being made, without the system's number for it.
pub fn in_words(error: &io::Error) -> String {
    let words = match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "timed out",
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "the connection was reset",
        io::ErrorKind::HostUnreachable => "no route to that host",
        io::ErrorKind::NetworkUnreachable => "no route to that network",
        _ => return error.to_string(),
    };
    words.to_owned()
}
