//! Control connections: the handshake, then whole messages, each encrypted and authenticated.
//!
//! A message travels as one or more records, because Noise bounds a record to 65535 bytes:
//!
//! ```text
//! record  = length of the ciphertext (u16, big endian), ciphertext
//! plain   = 1 if more records of this message follow, else 0; then a piece of the message
//! ```
//!
//! Records are numbered by each direction's own counter, so dropping, repeating or reordering one breaks its
//! authentication. The receiver says how long a message may be, and memory grows only with bytes that have
//! arrived.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use snow::StatelessTransportState;

use crate::handshake::shake_hands;
use crate::timed::Timed;
use crate::{Error, Role, Secret};

const RECORD: usize = 65535;
const TAG: usize = 16;
const PIECE: usize = RECORD - TAG - 1;
const LAST: u8 = 0;
const MORE: u8 = 1;

/// A stream that can be had twice, so that one thread reads it while another writes.
pub trait Duplicate: Sized {
    /// A second handle on the same connection.
    fn duplicate(&self) -> io::Result<Self>;
}

impl Duplicate for TcpStream {
    fn duplicate(&self) -> io::Result<Self> {
        self.try_clone()
    }
}

impl Duplicate for UnixStream {
    fn duplicate(&self) -> io::Result<Self> {
        self.try_clone()
    }
}

/// A connection on which both ends have proven themselves and every message is encrypted.
pub struct Sealed<S> {
    stream: S,
    sender: Sender,
    receiver: Receiver,
}

/// The half of a [`Sealed`] connection that receives.
pub struct SealedReader<S> {
    stream: S,
    receiver: Receiver,
}

/// The half of a [`Sealed`] connection that sends.
pub struct SealedWriter<S> {
    stream: S,
    sender: Sender,
}

impl<S: Read + Write> Sealed<S> {
    /// Shakes hands over `stream`, as [`prove`](crate::prove) does, and seals what follows.
    pub fn open(mut stream: S, secret: &Secret, role: Role, purpose: &[u8]) -> Result<Sealed<S>, Error> {
        let keys = shake_hands(&mut stream, secret, role, purpose)?;
        Ok(Sealed::new(stream, keys, role))
    }

    /// Sends one message.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.sender.send(&mut self.stream, message)
    }

    /// Receives one message of at most `max` bytes. [`Error::Closed`] if the peer ended the connection in
    /// order.
    pub fn recv(&mut self, max: usize) -> Result<Vec<u8>, Error> {
        self.receiver.recv(&mut self.stream, max)
    }
}

impl<S> Sealed<S> {
    fn new(stream: S, keys: StatelessTransportState, role: Role) -> Sealed<S> {
        let keys = Arc::new(keys);
        // The dialer's first number went into the confirmation that ends the handshake.
        let (sent, received) = match role {
            Role::Dialer => (1, 0),
            Role::Listener => (0, 1),
        };
        Sealed {
            stream,
            sender: Sender { keys: Arc::clone(&keys), next: sent },
            receiver: Receiver { keys, next: received },
        }
    }

    /// The stream underneath, for its options and addresses; reading or writing it directly breaks the
    /// connection.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl Sealed<TcpStream> {
    /// [`open`](Sealed::open), with a limit for the handshake as a whole, however slowly the peer drips its
    /// bytes.
    pub fn open_within(
        stream: TcpStream,
        secret: &Secret,
        role: Role,
        purpose: &[u8],
        limit: Duration,
    ) -> Result<Sealed<TcpStream>, Error> {
        let keys = Timed::run(&stream, limit, |timed| shake_hands(timed, secret, role, purpose))?;
        Ok(Sealed::new(stream, keys, role))
    }
}

impl<S: Duplicate> Sealed<S> {
    /// Two halves that work at the same time from two threads.
    pub fn into_split(self) -> Result<(SealedReader<S>, SealedWriter<S>), Error> {
        let second = self.stream.duplicate().map_err(Error::Io)?;
        Ok((
            SealedReader { stream: self.stream, receiver: self.receiver },
            SealedWriter { stream: second, sender: self.sender },
        ))
    }
}

impl<S: Read> SealedReader<S> {
    /// Receives one message of at most `max` bytes. [`Error::Closed`] if the peer ended the connection in
    /// order.
    pub fn recv(&mut self, max: usize) -> Result<Vec<u8>, Error> {
        self.receiver.recv(&mut self.stream, max)
    }
}

impl<S> SealedReader<S> {
    /// The stream underneath, for its options and addresses.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: Write> SealedWriter<S> {
    /// Sends one message.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.sender.send(&mut self.stream, message)
    }
}

impl<S> SealedWriter<S> {
    /// The stream underneath, for its options and addresses.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

struct Sender {
    keys: Arc<StatelessTransportState>,
    next: u64,
}

impl Sender {
    fn send<S: Write>(&mut self, stream: &mut S, message: &[u8]) -> Result<(), Error> {
        let mut rest = message;
        let mut plain = Vec::with_capacity(1 + rest.len().min(PIECE));
        let mut frame = Vec::new();
        loop {
            let (piece, after) = rest.split_at(rest.len().min(PIECE));
            plain.clear();
            plain.push(if after.is_empty() { LAST } else { MORE });
            plain.extend_from_slice(piece);

            let sealed = plain.len() + TAG;
            frame.resize(2 + sealed, 0);
            // At most RECORD, by the choice of PIECE.
            frame[..2].copy_from_slice(&(sealed as u16).to_be_bytes());
            self.keys
                .write_message(self.next, &plain, &mut frame[2..])
                .map_err(|error| Error::Noise(error.to_string()))?;
            self.next += 1;
            stream.write_all(&frame).map_err(Error::Io)?;

            rest = after;
            if rest.is_empty() {
                return stream.flush().map_err(Error::Io);
            }
        }
    }
}

struct Receiver {
    keys: Arc<StatelessTransportState>,
    next: u64,
}

impl Receiver {
    fn recv<S: Read>(&mut self, stream: &mut S, max: usize) -> Result<Vec<u8>, Error> {
        let mut message = Vec::new();
        let mut first = true;
        loop {
            let length = match length(stream) {
                Err(Error::Closed) if !first => {
                    return Err(Error::Truncated { during: "a message" });
                }
                other => other?,
            };
            first = false;
            if length < TAG + 1 {
                return Err(Error::Tampered);
            }
            let mut sealed = vec![0; length];
            stream.read_exact(&mut sealed).map_err(|error| Error::from_io(error, "a message"))?;
            let mut plain = vec![0; length];
            let opened =
                self.keys.read_message(self.next, &sealed, &mut plain).map_err(|_| Error::Tampered)?;
            self.next += 1;

            let (more, piece) = (plain[0], &plain[1..opened]);
            if message.len() + piece.len() > max {
                return Err(Error::TooLong { max });
            }
            message.extend_from_slice(piece);
            match more {
                LAST => return Ok(message),
                // A peer that promises more without sending any would keep us here for ever.
                MORE if !piece.is_empty() => {}
                _ => return Err(Error::Tampered),
            }
        }
    }
}

/// The length of the next record; [`Error::Closed`] if the stream ends exactly before it.
fn length<S: Read>(stream: &mut S) -> Result<usize, Error> {
    let mut bytes = [0; 2];
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) if filled == 0 => return Err(Error::Closed),
            Ok(0) => {
                return Err(Error::Truncated { during: "a message" });
            }
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Io(error)),
        }
    }
    Ok(usize::from(u16::from_be_bytes(bytes)))
}
