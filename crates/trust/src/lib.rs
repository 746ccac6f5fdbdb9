//! Trust between the processes of one job.
//!
//! A job has one 256-bit [`Secret`]. Every connection proves that both ends know it before anything else is
//! read from it: [`prove`] for connections that then carry plain bytes (bulk data between ranks), [`Sealed`]
//! for control connections, whose every message is encrypted. Both use the same Noise handshake
//! (`handshake.rs`), bound to a *purpose*, so that a connection made for one thing cannot be passed off as
//! another.
//!
//! Nothing here knows about ranks, addresses or message formats; `ronde-rendezvous` and `ronde-collective`
//! build on it.

mod error;
mod handshake;
mod sealed;
mod secret;
mod timed;

pub use error::{Error, in_words};
pub use handshake::{Role, prove};
pub use sealed::{Duplicate, Sealed, SealedReader, SealedWriter};
pub use secret::Secret;
pub use timed::prove_within;
