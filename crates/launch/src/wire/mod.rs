//! What the driver and the agents say to each other, and how it travels.
//!
//! `message.rs` has the words, `frames.rs` carries them over a pair of pipes or a sealed TCP connection, and
//! `carry.rs` carries connections of ranks along, and `outbox.rs` is the queue in front of that: control messages overtake output, and only whoever produces output ever
//! waits for room.

mod carry;
mod frames;
mod message;
mod outbox;

pub(crate) use carry::{Carried, Carrier, Destination};
pub(crate) use frames::{Incoming, Outgoing, PURPOSE, Preamble, WireError, announce, await_preamble};
pub(crate) use message::{
    Attachment, FromAgent, Hello, Problem, RankStart, Start, ToAgent, VERSION, WINDOW, Welcome,
};
pub(crate) use outbox::Outbox;
