//! Messages as frames: over a pair of pipes (ssh, or a child on this machine), or over a sealed TCP connection.
//!
//! On pipes a frame is its length and the encoded message. What a login shell prints before the agent speaks is skipped
//! up to a [`Preamble`], which no shell prints.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;

use ronde_trust::{SealedReader, SealedWriter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Serialize, de::DeserializeOwned};

/// What a sealed connection between an agent and its driver is for.
pub(crate) const PURPOSE: &[u8] = b"ronde agent 1";

/// The longest frame either side accepts.
const LONGEST: usize = 4 << 20;

/// What an agent says on its output before the first frame.
const READY: &[u8] = b"\n\x01ronde agent ready\x01\n";
/// What the script that starts it says if it needs the program first; the rest of the line says for which machine.
const NEED: &[u8] = b"\n\x01ronde agent needed\x01";
/// What it says if the program could not be stored or run.
const FAILED: &[u8] = b"\n\x01ronde agent failed\x01\n";
/// How much a login shell may print.
const MOST_NOISE: usize = 1 << 20;

/// Why no further message comes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the connection was closed")]
    Closed,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Sealed(ronde_trust::Error),
    #[error("what came makes no sense: {0}")]
    Nonsense(String),
}

/// Where messages come from.
pub(crate) enum Incoming {
    Pipe(File),
    Sealed(SealedReader<TcpStream>),
}

/// Where messages go to.
pub(crate) enum Outgoing {
    Pipe(File),
    Sealed(SealedWriter<TcpStream>),
}

impl Incoming {
    /// Whether a connection of TCP has been closed by the other end, whatever it said before.
    pub(crate) fn is_closed(&self) -> bool {
        let Incoming::Sealed(connection) = self else { return false };
        let mut waits = [PollFd::new(connection.stream(), PollFlags::RDHUP)];
        matches!(poll(&mut waits, Some(&Timespec::default())), Ok(1..))
    }

    /// Waits for the next message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, WireError> {
        let bytes = match self {
            Incoming::Pipe(pipe) => read_frame(pipe)?,
            Incoming::Sealed(connection) => connection.recv(LONGEST).map_err(|error| match error {
                ronde_trust::Error::Closed | ronde_trust::Error::Truncated { .. } => WireError::Closed,
                other => WireError::Sealed(other),
            })?,
        };
        postcard::from_bytes(&bytes).map_err(|error| WireError::Nonsense(error.to_string()))
    }
}

impl Outgoing {
    /// Sends one message.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<(), WireError> {
        match self {
            Outgoing::Pipe(pipe) => {
                // One write for length and message, so that small ones cost one system call.
                let frame = postcard::to_extend(message, vec![0; 4])
                    .map_err(|error| WireError::Nonsense(error.to_string()))?;
                pipe.write_all(&with_length(frame))?;
                Ok(())
            }
            Outgoing::Sealed(connection) => {
                let bytes =
                    postcard::to_stdvec(message).map_err(|error| WireError::Nonsense(error.to_string()))?;
                connection.send(&bytes).map_err(WireError::Sealed)
            }
        }
    }
}

/// Fills in the length that the first four bytes were kept for.
fn with_length(mut frame: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX);
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame
}

fn read_frame(pipe: &mut impl Read) -> Result<Vec<u8>, WireError> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < length.len() {
        match pipe.read(&mut length[have..]) {
            Ok(0) => return Err(WireError::Closed),
            Ok(read) => have += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(WireError::Nonsense(format!("a message of {length} bytes")));
    }
    let mut frame = vec![0; length];
    match pipe.read_exact(&mut frame) {
        Ok(()) => Ok(frame),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(WireError::Closed),
        Err(error) => Err(error.into()),
    }
}

/// Says that frames follow.
pub(crate) fn announce(pipe: &mut impl Write) -> std::io::Result<()> {
    pipe.write_all(READY)?;
    pipe.flush()
}

/// What the other end of a pipe turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Preamble {
    /// An agent: frames follow.
    Ready,
    /// The host lacks our program; what the host is (`Linux x86_64`).
    Needed(String),
    /// The program could not be stored or run there.
    Failed,
    /// It ended without a word of ours; what it printed instead.
    Ended(String),
}

/// Reads up to the preamble, and not a byte further.
pub(crate) fn await_preamble(pipe: &mut impl Read) -> std::io::Result<Preamble> {
    // The first newline may be the end of the shell's own last line.
    let mut seen = vec![b'\n'];
    let mut byte = [0];
    while seen.len() < MOST_NOISE {
        match pipe.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => seen.push(byte[0]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if byte[0] != b'\n' {
            continue;
        }
        if seen.ends_with(READY) {
            return Ok(Preamble::Ready);
        }
        if seen.ends_with(FAILED) {
            return Ok(Preamble::Failed);
        }
        let line = seen[..seen.len() - 1].rsplitn(2, |byte| *byte == b'\n').next().unwrap_or_default();
        if let Some(machine) = line.strip_prefix(&NEED[1..]) {
            return Ok(Preamble::Needed(String::from_utf8_lossy(machine).trim().to_owned()));
        }
    }
    Ok(Preamble::Ended(String::from_utf8_lossy(&seen).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preamble(printed: &[u8]) -> (Preamble, Vec<u8>) {
        let mut rest = printed;
        let found = await_preamble(&mut rest).expect("memory is readable");
        (found, rest.to_vec())
    }

    #[test]
    fn noise_of_a_login_shell_is_skipped_and_nothing_after_the_preamble_is_touched() {
        for noise in ["", "Welcome to gpu2!\n\n", "no newline at the end", "\u{1}\n\u{1}ronde\n"] {
            let printed = [noise.as_bytes(), READY, b"frame"].concat();
            assert_eq!(preamble(&printed), (Preamble::Ready, b"frame".to_vec()), "{noise:?}");
        }
        let printed = [b"hello".as_slice(), NEED, b" Linux x86_64\nrest"].concat();
        assert_eq!(preamble(&printed), (Preamble::Needed("Linux x86_64".to_owned()), b"rest".to_vec()));
        assert_eq!(preamble(FAILED).0, Preamble::Failed);
        let ended = preamble(b"This account is not available.\n").0;
        assert_eq!(ended, Preamble::Ended("This account is not available.".to_owned()));
    }

    #[test]
    fn frames_are_bounded_and_cut_short_ones_are_a_closed_connection() {
        let frame = with_length(vec![0, 0, 0, 0, 7, 8]);
        assert_eq!(read_frame(&mut frame.as_slice()).expect("whole"), [7, 8]);
        for length in 0..frame.len() {
            let cut = read_frame(&mut &frame[..length]);
            assert!(matches!(cut, Err(WireError::Closed)), "{length}: {cut:?}");
        }
        let long = read_frame(&mut u32::MAX.to_le_bytes().as_slice());
        assert!(matches!(long, Err(WireError::Nonsense(_))), "{long:?}");
    }
}
