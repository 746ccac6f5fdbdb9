//! The messages between a rank and the rendezvous, and their limits.
//!
//! They are encoded with postcard and travel only over sealed connections, so whoever sends one
//! has proven to belong to the job. Lengths are bounded all the same: a broken rank must not take
//! the others' memory with it.

use serde::{Deserialize, Serialize};

use crate::Loss;

/// What a handshake with the rendezvous is for; nothing else may be passed off as it.
pub(crate) const PURPOSE: &[u8] = b"ronde rendezvous 1";

/// The longest message either side accepts.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// What a message may spend on the bytes it carries; the rest is room for the lengths between
/// them.
pub(crate) const MAX_PAYLOAD: usize = MAX_MESSAGE - (1 << 20);

/// From a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromRank {
    /// First message: who this is.
    Join { rank: usize, size: usize, host: String, card: Vec<u8> },
    /// This rank's part of an exchange.
    Exchange { tag: String, bytes: Vec<u8> },
    /// Who has not joined yet?
    WhoIsMissing,
    /// This rank is about to end because of this; the others should know before it leaves.
    Fail { reason: String },
    /// This rank waits no longer for the table; the connection ends here.
    GiveUp { reason: String },
    /// Goodbye; the connection ends here, in order.
    Leave,
}

/// From the rendezvous.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromServer {
    /// Answer to a `Join` that cannot be; the connection ends here.
    Refused { reason: String },
    /// Everybody has joined: all cards in rank order.
    Table { cards: Vec<Vec<u8>> },
    /// Everybody has given: all parts in rank order.
    Exchanged { tag: String, parts: Vec<Vec<u8>> },
    /// The exchange cannot complete.
    ExchangeFailed { tag: String, reason: String },
    /// Answer to `WhoIsMissing`.
    Missing { ranks: Vec<usize> },
    /// Somebody is gone.
    Lost(Loss),
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // These types hold nothing that postcard could refuse to write into a growing vector.
    postcard::to_stdvec(message).expect("plain data always encodes")
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(bytes).map_err(|error| format!("a message made no sense ({error})"))
}

#[cfg(test)]
mod tests {
    use super::{FromRank, FromServer, decode};

    #[test]
    fn garbage_and_absurd_lengths_decode_to_an_error() {
        for bytes in [&[][..], &[200], &[0, 1], &[1, 255, 255, 255, 255, 15, 1], &[9; 64]] {
            assert!(decode::<FromRank>(bytes).is_err(), "{bytes:?}");
            assert!(decode::<FromServer>(bytes).is_err(), "{bytes:?}");
        }
    }
}
