//! The handshake: both ends prove knowledge of the job secret, each to a value the other chose just now.
//!
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` with the secret as its pre-shared key and the purpose as its
//! prologue. Its two messages alone would let somebody replay a recorded first message to a listener; a third
//! one, encrypted under the keys that both fresh ephemerals gave, closes that: it can only come from a dialer
//! that took part just now.
//!
//! ```text
//! dialer   -> listener   48 bytes   psk, e          listener learns: the dialer knew the secret once
//! listener -> dialer     48 bytes   e, ee           dialer learns: the listener knows it, now
//! dialer   -> listener   16 bytes   confirmation    listener learns: the dialer knows it, now
//! ```
//!
//! Each message goes out behind one byte that says its length. Lengths are fixed, so anything else is dropped
//! before it is read. An empty frame means "your proof does not hold": it lets the other end say so instead
//! of guessing from a closed connection, and gives away nothing that closing it would not.

use std::io::{Read, Write};

use snow::{Builder, StatelessTransportState};

use crate::{Error, Secret};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const PROOF: usize = 48;
const CONFIRMATION: usize = 16;

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end that connected, and speaks first.
    Dialer,
    /// The end that accepted.
    Listener,
}

/// Proves knowledge of `secret` to the other end of `stream` and demands the same of it.
///
/// Afterwards the stream carries plain bytes: this authenticates the start of a connection and does not
/// protect what follows. Both ends must name the same `purpose`. Give the stream a read timeout, or use
/// [`prove_within`](crate::prove_within), where the other end may be silent.
pub fn prove<S: Read + Write>(
    stream: &mut S,
    secret: &Secret,
    role: Role,
    purpose: &[u8],
) -> Result<(), Error> {
    shake_hands(stream, secret, role, purpose).map(drop)
}

/// The handshake with the keys it ends in. Nonce 0 of the dialer's direction is spent on the confirmation.
pub(crate) fn shake_hands<S: Read + Write>(
    stream: &mut S,
    secret: &Secret,
    role: Role,
    purpose: &[u8],
) -> Result<StatelessTransportState, Error> {
    let pattern = PATTERN.parse().map_err(noise)?;
    let builder =
        Builder::new(pattern).psk(0, secret.bytes()).map_err(noise)?.prologue(purpose).map_err(noise)?;
    let mut out = [0; PROOF];
    let mut nothing = [0; PROOF];
    match role {
        Role::Dialer => {
            let mut state = builder.build_initiator().map_err(noise)?;
            state.write_message(&[], &mut out).map_err(noise)?;
            send(stream, &out)?;
            let answer = receive::<PROOF, S>(stream)?;
            if state.read_message(&answer, &mut nothing).is_err() {
                return refuse(stream);
            }
            let keys = state.into_stateless_transport_mode().map_err(noise)?;
            keys.write_message(0, &[], &mut out).map_err(noise)?;
            send(stream, &out[..CONFIRMATION])?;
            Ok(keys)
        }
        Role::Listener => {
            let mut state = builder.build_responder().map_err(noise)?;
            let hello = receive::<PROOF, S>(stream)?;
            if state.read_message(&hello, &mut nothing).is_err() {
                return refuse(stream);
            }
            state.write_message(&[], &mut out).map_err(noise)?;
            send(stream, &out)?;
            let keys = state.into_stateless_transport_mode().map_err(noise)?;
            let confirmation = receive::<CONFIRMATION, S>(stream)?;
            if keys.read_message(0, &confirmation, &mut nothing).is_err() {
                return refuse(stream);
            }
            Ok(keys)
        }
    }
}

fn send<S: Write>(stream: &mut S, message: &[u8]) -> Result<(), Error> {
    let mut frame = [0; 1 + PROOF];
    // At most PROOF, which fits a byte. One write, so that the frame leaves as one packet.
    frame[0] = message.len() as u8;
    frame[1..=message.len()].copy_from_slice(message);
    stream
        .write_all(&frame[..=message.len()])
        .and_then(|()| stream.flush())
        .map_err(|error| Error::from_io(error, "the handshake"))
}

fn receive<const LENGTH: usize, S: Read>(stream: &mut S) -> Result<[u8; LENGTH], Error> {
    let failed = |error| Error::from_io(error, "the handshake");
    let mut length = [0];
    stream.read_exact(&mut length).map_err(failed)?;
    match usize::from(length[0]) {
        0 => Err(Error::Rejected),
        length if length == LENGTH => {
            let mut message = [0; LENGTH];
            stream.read_exact(&mut message).map_err(failed)?;
            Ok(message)
        }
        _ => Err(Error::NotOurs),
    }
}

/// Tells the other end that its proof does not hold. Whether that arrives changes nothing here.
fn refuse<T, S: Write>(stream: &mut S) -> Result<T, Error> {
    let _ = send(stream, &[]);
    Err(Error::Unproven)
}

fn noise(error: snow::Error) -> Error {
    Error::Noise(error.to_string())
}
