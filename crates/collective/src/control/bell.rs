//! What a rank sleeps on when it has nothing to do, and how it is woken.
//!
//! A [`Bell`] is an event descriptor: every rank has its own, and the ranks that write to it through shared memory hold
//! it too. A [`Sleeper`] waits for the bell, for the wires and for the alarm that tells of a loss, all in one system
//! call. A [`Watch`] is how news of a member that left reaches both.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::pipe::WireEnd;
use crate::error::{Error, Result};
use crate::fabric::Shared;

/// Rings a rank, from any thread. A ring is not lost when nobody sleeps: it ends the next sleep.
#[derive(Clone)]
pub struct Bell {
    event: Arc<OwnedFd>,
}

impl Bell {
    pub(super) fn new() -> Result<Bell> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::errno("making an event descriptor"))?;
        Ok(Bell::from(event))
    }

    /// Wakes the rank.
    pub fn ring(&self) {
        // The only failure is a full count, and then the bell rings already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Forgets the rings so far.
    fn hush(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl From<OwnedFd> for Bell {
    fn from(event: OwnedFd) -> Bell {
        Bell { event: Arc::new(event) }
    }
}

/// Told by the fabric when a member leaves in order.
pub(crate) struct Watch {
    bell: Bell,
    /// Rank (plus one) of the first that left.
    left: AtomicUsize,
}

impl Watch {
    pub(super) fn new(bell: Bell) -> Watch {
        Watch { bell, left: AtomicUsize::new(0) }
    }

    /// Notes that `rank` has left, and wakes the sleeper once.
    pub(crate) fn departed(&self, rank: usize) {
        let _ = self.left.compare_exchange(0, rank + 1, Ordering::AcqRel, Ordering::Relaxed);
        self.bell.ring();
    }

    /// The first rank that left.
    pub(super) fn left(&self) -> Option<usize> {
        self.left.load(Ordering::Acquire).checked_sub(1)
    }
}

/// What a thread sleeps on while it does not hold the [`Tree`](super::Tree). Clones sleep on the same bell, whose ring
/// wakes one of them, so one thread at a time should sleep.
#[derive(Clone)]
pub struct Sleeper {
    place: Arc<Place>,
}

struct Place {
    bell: Bell,
    wires: Vec<Arc<WireEnd>>,
    shared: Arc<Shared>,
}

impl Sleeper {
    pub(super) fn new(bell: Bell, wires: Vec<Arc<WireEnd>>, shared: Arc<Shared>) -> Sleeper {
        Sleeper { place: Arc::new(Place { bell, wires, shared }) }
    }

    /// Whether there are wires, whose bytes wake a sleeper until somebody has read them.
    pub fn has_wires(&self) -> bool {
        !self.place.wires.is_empty()
    }

    /// Sleeps until the bell rings, a wire has bytes (or takes some, if output waits for it), a member has left, or
    /// the time is over; it may also end early for no reason. A loss is an error. Consumes all rings so far.
    ///
    /// For frames in the host to ring the bell, [`Tree::attend`](super::Tree::attend) must be called before *each*
    /// sleep, and [`Tree::has_news`](super::Tree::has_news) after it: only if that says no, sleeping is safe.
    pub fn sleep(&self, limit: Option<Duration>) -> Result<()> {
        self.sleep_on(&self.place.wires, limit)
    }

    /// The same without the wires: for one that cannot take in what they bring until its bell rings.
    pub fn sleep_on_bell(&self, limit: Option<Duration>) -> Result<()> {
        self.sleep_on(&[], limit)
    }

    fn sleep_on(&self, wires: &[Arc<WireEnd>], limit: Option<Duration>) -> Result<()> {
        let Place { bell, shared, .. } = &*self.place;
        shared.check_loss()?;
        let mut fds = vec![
            PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(shared.alarm(), PollFlags::IN),
        ];
        fds.extend(wires.iter().filter(|end| !end.is_over()).map(|end| end.poll_fd()));
        // A limit too long for the kernel is none.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) if !fds[0].revents().is_empty() => bell.hush(),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::errno("waiting for control messages")(error)),
        }
        shared.check_loss()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_departure_is_kept_and_each_rings() {
        let watch = Watch::new(Bell::new().expect("event descriptor"));
        assert_eq!(watch.left(), None);
        watch.departed(0);
        watch.departed(4);
        assert_eq!(watch.left(), Some(0));
        let mut count = [0; 8];
        rustix::io::read(watch.bell.fd(), &mut count).expect("it rang");
        assert_eq!(u64::from_ne_bytes(count), 2);
    }
}
