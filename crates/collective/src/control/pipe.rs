//! A pipe of frames to one parent or child, over shared memory ([`Near`]) or a TCP wire ([`Far`]).
//!
//! A [`Link`] moves bytes as far as that goes without waiting; a [`Pipe`] puts frames on top, the same for both kinds.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::bell::Bell;
use super::desk::Desks;
use super::frame::{Inbox, Outbox, TooLong};
use super::ring::{Nonsense, Reader, Writer};
use crate::error::Result;
use crate::fabric::Shared;
use crate::net::Wire;

/// Bytes taken from a wire at once. Whatever is left makes the wire readable again.
const GULP: usize = 64 << 10;

/// Why a link cannot go on.
pub(super) struct Broken(String);

impl From<Nonsense> for Broken {
    fn from(_: Nonsense) -> Broken {
        Broken("its counts in the shared memory for control messages do not make sense".into())
    }
}

/// Moves bytes without waiting.
pub(super) trait Link {
    /// Whether a peer that takes no more bytes may have said why before.
    const MAY_EXPLAIN: bool;

    /// Sends the front of `bytes` as far as possible. If not all went, it goes on with a later call: the link sees to
    /// it that this rank is woken when that is worth trying.
    fn write(&mut self, bytes: &[u8]) -> std::result::Result<usize, Broken>;

    /// Appends what has come, and returns how much.
    fn read(&mut self, into: &mut Vec<u8>) -> std::result::Result<usize, Broken>;

    /// The peer has said goodbye: there is nothing to wait for any more.
    fn end(&self) {}
}

/// Two rings in shared memory, and the bell of whoever is at their other ends.
pub(super) struct Near {
    pub(super) desks: Arc<Desks>,
    /// The peer's position on the host.
    pub(super) peer: usize,
    pub(super) bell: Bell,
    pub(super) writer: Writer,
    pub(super) reader: Reader,
}

impl Near {
    /// Whether reading (or, if output waits, writing) would get somewhere. Nonsense is news as well.
    fn has_news(&self, output_waits: bool) -> bool {
        self.reader.waiting() != Ok(0) || (output_waits && self.writer.room() != Ok(0))
    }
}

impl Link for Near {
    const MAY_EXPLAIN: bool = false;

    fn write(&mut self, bytes: &[u8]) -> std::result::Result<usize, Broken> {
        let mut sent = self.writer.write(bytes)?;
        if sent < bytes.len() {
            self.writer.want_room();
            sent += self.writer.write(&bytes[sent..])?;
        }
        if sent > 0 && self.desks.ring_me(self.peer).take() {
            self.bell.ring();
        }
        Ok(sent)
    }

    fn read(&mut self, into: &mut Vec<u8>) -> std::result::Result<usize, Broken> {
        let got = self.reader.read(into)?;
        if got > 0 && self.reader.writer_waits() {
            self.bell.ring();
        }
        Ok(got)
    }
}

/// A wire as both the tree and its sleeper know it.
pub(super) struct WireEnd {
    wire: Arc<Wire>,
    /// Whether output waits until the wire takes more.
    output_waits: AtomicBool,
    /// Whether nothing more comes or goes, since the peer has said goodbye.
    over: AtomicBool,
}

impl WireEnd {
    pub(super) fn new(wire: Arc<Wire>) -> WireEnd {
        WireEnd { wire, output_waits: AtomicBool::new(false), over: AtomicBool::new(false) }
    }

    /// Whether there is nothing to wait for any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// What to wait for on this wire.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let output =
            if self.output_waits.load(Ordering::Acquire) { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::from_borrowed_fd(self.wire.stream.as_fd(), PollFlags::IN | output)
    }
}

/// A TCP wire to another host.
pub(super) struct Far {
    pub(super) end: Arc<WireEnd>,
    /// This rank's own bell: a sleeper must begin to look for room on the wire.
    pub(super) own_bell: Bell,
}

impl Link for Far {
    const MAY_EXPLAIN: bool = true;

    fn end(&self) {
        self.end.over.store(true, Ordering::Release);
    }

    fn write(&mut self, bytes: &[u8]) -> std::result::Result<usize, Broken> {
        let mut sent = 0;
        let mut full = false;
        while sent < bytes.len() && !full {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.end.wire.stream, &bytes[sent..], flags) {
                Ok(more) => sent += more,
                Err(Errno::AGAIN) => full = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(Broken(format!("sending to it failed: {error}"))),
            }
        }
        if full != self.end.output_waits.swap(full, Ordering::AcqRel) && full {
            self.own_bell.ring();
        }
        Ok(sent)
    }

    fn read(&mut self, into: &mut Vec<u8>) -> std::result::Result<usize, Broken> {
        into.reserve(GULP);
        let room = rustix::buffer::spare_capacity(into);
        match rustix::net::recv(&self.end.wire.stream, room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(Broken("it closed its connection for control messages".into())),
            Ok((_, got)) => Ok(got),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(Broken(format!("receiving from it failed: {error}"))),
        }
    }
}

/// See the module's text.
pub(super) struct Pipe<L> {
    /// Who is at the other end: its position in the set, and its rank.
    position: usize,
    rank: usize,
    link: L,
    outbox: Outbox,
    inbox: Inbox,
    /// What was wrong when bytes could not be sent. What had come before may still explain it.
    broken: Option<Broken>,
}

impl<L: Link> Pipe<L> {
    pub(super) fn new(position: usize, rank: usize, link: L) -> Pipe<L> {
        Pipe { position, rank, link, outbox: Outbox::default(), inbox: Inbox::default(), broken: None }
    }

    /// Who is at the other end.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Sends a frame as far as the link takes it now, and keeps the rest.
    pub(super) fn send(&mut self, shared: &Shared, frame: &[u8]) -> Result<()> {
        self.outbox.push(frame);
        self.flush(shared)
    }

    /// Sends what was kept, as far as the link takes it now. What a peer that has left does not take is dropped; whether it
    /// has left is seen when its last bytes are received, and until then nothing is sent.
    pub(super) fn flush(&mut self, shared: &Shared) -> Result<()> {
        if self.inbox.said_goodbye {
            self.outbox.discard();
        }
        if self.outbox.is_empty() || self.broken.is_some() {
            return Ok(());
        }
        match self.link.write(self.outbox.rest()) {
            Ok(written) => self.outbox.advance(written),
            Err(broken) if L::MAY_EXPLAIN => self.broken = Some(broken),
            Err(broken) => return self.or_blame(shared, Err(broken)),
        }
        Ok(())
    }

    /// Whether something was kept.
    pub(super) fn keeps_output(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Takes in what has come and hands over whole frames. Whether anything came.
    pub(super) fn receive(&mut self, shared: &Shared, take: &mut impl FnMut(usize, &[u8])) -> Result<bool> {
        if self.inbox.said_goodbye {
            return Ok(false);
        }
        let got = self.link.read(&mut self.inbox.bytes);
        let delivered = self.inbox.deliver(|frame| take(self.position, frame)).map_err(|TooLong(len)| {
            Broken(format!("it announced a control message of {len} bytes, which cannot be"))
        });
        self.or_blame(shared, delivered)?;
        if self.inbox.said_goodbye {
            self.link.end();
            self.outbox.discard();
            return Ok(true);
        }
        let got = self.or_blame(shared, got)?;
        // Nothing more has come that could explain it.
        if got == 0
            && let Some(broken) = self.broken.take()
        {
            return self.or_blame(shared, Err(broken));
        }
        Ok(got > 0)
    }

    /// Whether the peer has said goodbye.
    pub(super) fn has_ended(&self) -> bool {
        self.inbox.said_goodbye
    }

    /// Who is at the other end.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    fn or_blame<T>(&self, shared: &Shared, outcome: std::result::Result<T, Broken>) -> Result<T> {
        outcome.map_err(|Broken(why)| shared.verdict(self.rank, &why))
    }
}

impl Pipe<Near> {
    /// Rings the peer's bell, whether it wants that or not.
    pub(super) fn wake(&self) {
        self.link.bell.ring();
    }

    /// Whether moving bytes would get somewhere.
    pub(super) fn has_news(&self) -> bool {
        self.link.has_news(self.keeps_output())
    }
}

impl Pipe<Far> {
    /// Says goodbye, if everything that was sent before is on its way: otherwise the peer had better know.
    pub(super) fn say_goodbye(&mut self) {
        if self.outbox.is_empty() && !self.inbox.said_goodbye {
            self.outbox.push_goodbye();
            // If it cannot be sent, the peer sees the end of the connection.
            let _ = self.link.write(self.outbox.rest());
        }
    }

    /// What to wait for on the wire.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        self.link.end.poll_fd()
    }
}
