//! A limit for a whole handshake over TCP.
//!
//! A socket's own read timeout starts anew with every byte, so a stranger could hold a connection for minutes
//! by dripping. Here each read and write gets only what is left until one deadline.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::{Error, Role, Secret, prove};

/// [`prove`], finished within `limit` or failed with [`Error::TimedOut`]. The socket's timeouts are cleared
/// afterwards.
pub fn prove_within(
    stream: &TcpStream,
    secret: &Secret,
    role: Role,
    purpose: &[u8],
    limit: Duration,
) -> Result<(), Error> {
    Timed::run(stream, limit, |timed| prove(timed, secret, role, purpose))
}

/// A TCP stream until a deadline.
pub(crate) struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl<'a> Timed<'a> {
    /// Runs `work` on the stream with a deadline, and leaves the socket without timeouts.
    pub(crate) fn run<T>(
        stream: &'a TcpStream,
        limit: Duration,
        work: impl FnOnce(&mut Timed<'a>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let result = work(&mut Timed { stream, deadline: Instant::now() + limit })?;
        stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None)).map_err(Error::Io)?;
        Ok(result)
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
