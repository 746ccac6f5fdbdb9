//! Connections of peers that have not proven themselves yet.
//!
//! A port is open to anybody. Every connection gets a thread that finds out who it is, but only so many at a time and only
//! so long: when more come, the one that has tried longest is hung up on, so that silent ones cannot keep others out.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a peer may take to say who it is and to prove it.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How many peers may be doing that at a time.
pub(crate) const MOST: usize = 256;

/// What can be hung up on while another thread reads it.
pub(crate) trait Connection: Send + Sized + 'static {
    /// A second handle on it.
    fn again(&self) -> io::Result<Self>;
    /// Ends it in both directions.
    fn hang_up(&self);
}

impl Connection for TcpStream {
    fn again(&self) -> io::Result<TcpStream> {
        self.try_clone()
    }

    fn hang_up(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Connection for UnixStream {
    fn again(&self) -> io::Result<UnixStream> {
        self.try_clone()
    }

    fn hang_up(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Peers in their handshake. Dropping it hangs up on all of them and waits for their threads.
pub(crate) struct Strangers<C: Connection> {
    shared: Arc<Mutex<State<C>>>,
    threads: Vec<JoinHandle<()>>,
}

struct State<C> {
    next: u64,
    /// By order of arrival, and so by deadline.
    waiting: BTreeMap<u64, (Instant, C)>,
}

impl<C: Connection> Strangers<C> {
    pub(crate) fn new() -> Strangers<C> {
        let state = State { next: 0, waiting: BTreeMap::new() };
        Strangers { shared: Arc::new(Mutex::new(state)), threads: Vec::new() }
    }

    /// Has `serve` called with the connection, on a thread of its own. What cannot have one is closed.
    pub(crate) fn receive(&mut self, connection: C, serve: impl FnOnce(C) + Send + 'static) {
        self.threads.retain(|thread| !thread.is_finished());
        let Ok(again) = connection.again() else { return };
        let number = {
            let mut state = lock(&self.shared);
            if state.waiting.len() >= MOST
                && let Some((_, (_, oldest))) = state.waiting.pop_first()
            {
                oldest.hang_up();
            }
            state.next += 1;
            let number = state.next;
            state.waiting.insert(number, (Instant::now() + HANDSHAKE_LIMIT, again));
            number
        };
        let shared = Arc::clone(&self.shared);
        let spawned = thread::Builder::new().name("ronde-stranger".to_owned()).spawn(move || {
            serve(connection);
            lock(&shared).waiting.remove(&number);
        });
        match spawned {
            Ok(thread) => self.threads.push(thread),
            Err(_) => drop(lock(&self.shared).waiting.remove(&number)),
        }
    }

    /// Hangs up on those whose time is over, and says when that of the next will be.
    pub(crate) fn expire(&mut self) -> Option<Instant> {
        let mut state = lock(&self.shared);
        let now = Instant::now();
        while let Some(entry) = state.waiting.first_entry() {
            let (deadline, connection) = entry.get();
            if *deadline > now {
                return Some(*deadline);
            }
            connection.hang_up();
            entry.remove();
        }
        None
    }
}

impl<C: Connection> Drop for Strangers<C> {
    fn drop(&mut self) {
        for (_, connection) in std::mem::take(&mut lock(&self.shared).waiting).values() {
            connection.hang_up();
        }
        for thread in self.threads.drain(..) {
            // A panic over there has been printed already.
            let _ = thread.join();
        }
    }
}

fn lock<C>(shared: &Mutex<State<C>>) -> MutexGuard<'_, State<C>> {
    // Each critical section is one step, so a panic leaves nothing half done.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_one_that_has_tried_longest_makes_room_and_the_end_ends_all() {
        let mut strangers = Strangers::new();
        let wait_for_end = |mut ours: UnixStream| drop(ours.read(&mut [0]));
        let mut theirs = Vec::new();
        for _ in 0..=MOST {
            let (ours, other) = UnixStream::pair().expect("a pair");
            other.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
            strangers.receive(ours, wait_for_end);
            theirs.push(other);
        }
        assert_eq!(theirs[0].read(&mut [0]).expect("an end"), 0, "the first was hung up on");
        theirs[1].set_nonblocking(true).expect("not to wait");
        let second = theirs[1].read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(second, Err(io::ErrorKind::WouldBlock), "the second still has its chance");
        assert!(strangers.expire().is_some_and(|next| next > Instant::now()));
        drop(strangers);
        assert_eq!(theirs[MOST].read(&mut [0]).expect("an end"), 0);
    }
}
