//! The doorway of a host: connections for any of its ranks come in here and are handed on to the rank they are for.
//!
//! A container behind address translation has one published port, and no port at all where only the connection to the
//! launcher is left; its ranks cannot be dialled. So the agent takes the connection, reads which rank is meant, and passes
//! the socket itself over a unix socket to that rank, which goes on as if it had accepted it. The agent is not involved in
//! anything that follows: bytes do not pass through it, and who the dialer is, the rank finds out by itself.
//!
//! ```text
//! rank     -> doorway   handshake, rank (8 bytes); from then on it waits          (abstract unix socket)
//! stranger -> doorway   "ronde to", rank (8 bytes); what follows is the rank's    (published port)
//! doorway  -> rank      one byte and one descriptor for every connection
//! ```
//!
//! Instead of a rank a stranger may mean the [`PROBE`], and is answered right here.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ronde_trust::{Role, Secret, prove};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::listening::{self, Error};
use crate::probe::{answer, timeout};
use crate::strangers::{HANDSHAKE_LIMIT, MOST, Strangers};

const PURPOSE: &[u8] = b"ronde doorway 1";
const MEANT_FOR: &[u8; 8] = b"ronde to";
/// Stands in the place of a rank, and means the agent itself.
pub(crate) const PROBE: u64 = u64::MAX;
/// How long a connection waits for the rank it is for.
const WAIT: Duration = Duration::from_secs(60);
/// How many connections may wait for their ranks; when more come, the one that has waited longest is closed.
const MOST_WAITING: usize = 1024;
/// How long to wait when connections cannot be accepted, for want of descriptors most likely.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);

/// What a dialer says at a doorway before anything else.
pub(crate) fn header(rank: u64) -> [u8; 16] {
    let mut header = [0; 16];
    header[..8].copy_from_slice(MEANT_FOR);
    header[8..].copy_from_slice(&rank.to_le_bytes());
    header
}

/// Whom a header means; `None` if it is none.
pub(crate) fn meant(header: &[u8; 16]) -> Option<u64> {
    let (magic, rank) = header.split_at(8);
    (magic == MEANT_FOR).then(|| u64::from_le_bytes(rank.try_into().expect("eight bytes")))
}

/// The open doorway. Dropping it closes the port and the links to the ranks; what was handed on stays with the ranks.
pub(crate) struct Doorway {
    name: String,
    /// Where strangers come in.
    #[cfg(test)]
    published: Option<SocketAddr>,
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Readable when the keeper should look at the state again.
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    ranks: HashMap<u64, Arc<UnixStream>>,
    /// In order of arrival, and so of deadlines.
    waiting: VecDeque<Waiting>,
    closing: bool,
}

/// A connection on its way to a rank.
struct Waiting {
    until: Instant,
    rank: u64,
    connection: TcpStream,
}

impl Doorway {
    /// Opens it for the ranks of this host, and for strangers at an address if one is published: with the identity by which
    /// the agent then answers those who mean the probe.
    pub(crate) fn open(secret: Secret, publish: Option<(SocketAddr, u64)>) -> Result<Doorway, Error> {
        let failed = Error::system("open a doorway");
        let name = format!("ronde-doorway-{}", random_digits()?);
        let inside = unix::SocketAddr::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(&failed)?;
        inside.set_nonblocking(true).map_err(&failed)?;
        let outside = match publish {
            Some((address, identity)) => Some((listening::at(address)?, identity)),
            None => None,
        };
        if let Some((listener, _)) = &outside {
            listener.set_nonblocking(true).map_err(&failed)?;
        }
        #[cfg(test)]
        let published = outside.as_ref().and_then(|(listener, _)| listener.local_addr().ok());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let shared = Arc::new(Shared { state: Mutex::default(), wake });
        let keeper = Keeper { secret, inside, outside, shared: Arc::clone(&shared), unread: VecDeque::new() };
        let keeper = thread::Builder::new()
            .name("ronde-doorway".to_owned())
            .spawn(move || keeper.keep())
            .map_err(Error::system("start a thread"))?;
        Ok(Doorway {
            name,
            #[cfg(test)]
            published,
            shared,
            keeper: Some(keeper),
        })
    }

    /// What ranks find it by: the name of an abstract unix socket.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Hands a connection on to a rank, now or when it comes.
    pub(crate) fn hand(&self, rank: usize, connection: TcpStream) {
        self.shared.hand(rank as u64, connection);
    }
}

impl Drop for Doorway {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.wake();
        if let Some(keeper) = self.keeper.take() {
            // A panic over there has been printed already.
            let _ = keeper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each critical section is one step, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A counter that is full wakes just as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn hand(&self, rank: u64, connection: TcpStream) {
        let mut state = self.lock();
        if state.waiting.len() >= MOST_WAITING {
            state.waiting.pop_front();
        }
        state.waiting.push_back(Waiting { until: Instant::now() + WAIT, rank, connection });
        drop(state);
        self.wake();
    }
}

impl State {
    /// Hands on what can be handed on and closes what has waited too long. Returns the ranks that take nothing more right
    /// now.
    fn deliver(&mut self) -> HashSet<u64> {
        let (now, mut full) = (Instant::now(), HashSet::new());
        for one in std::mem::take(&mut self.waiting) {
            let link = self.ranks.get(&one.rank).filter(|_| !full.contains(&one.rank));
            match link.map(|link| pass(link, &one.connection)) {
                // It has its own handle on it now, or never will.
                Some(Ok(()) | Err(Errno::TOOMANYREFS)) => continue,
                Some(Err(Errno::AGAIN)) => drop(full.insert(one.rank)),
                Some(Err(_)) => drop(self.ranks.remove(&one.rank)),
                None => {}
            }
            if one.until > now {
                self.waiting.push_back(one);
            }
        }
        full
    }
}

/// Sends a connection over a link, without waiting.
fn pass(link: &UnixStream, connection: &TcpStream) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [connection.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(link, &[IoSlice::new(&[0])], &mut ancillary, flags).map(drop)
}

/// A stranger that has not said all of whom it means.
struct Unread {
    until: Instant,
    connection: TcpStream,
    header: [u8; 16],
    read: usize,
}

/// What to do with a stranger after it could be read.
enum Said {
    NotAll,
    Meant(u64),
    Nonsense,
}

impl Unread {
    fn read(&mut self) -> Said {
        match self.connection.read(&mut self.header[self.read..]) {
            Ok(0) => Said::Nonsense,
            Ok(read) => {
                self.read += read;
                match self.read == self.header.len() {
                    true => meant(&self.header).map_or(Said::Nonsense, Said::Meant),
                    false => Said::NotAll,
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Said::NotAll,
                _ => Said::Nonsense,
            },
        }
    }
}

/// The thread behind a doorway.
struct Keeper {
    secret: Secret,
    inside: UnixListener,
    outside: Option<(TcpListener, u64)>,
    shared: Arc<Shared>,
    /// In order of arrival, and so of deadlines.
    unread: VecDeque<Unread>,
}

impl Keeper {
    fn keep(mut self) {
        let (mut arriving, mut probing) = (Strangers::new(), Strangers::new());
        loop {
            let (links, full, waits_until) = {
                let mut state = self.shared.lock();
                if state.closing {
                    return;
                }
                let full = state.deliver();
                let links: Vec<(u64, Arc<UnixStream>)> =
                    state.ranks.iter().map(|(&rank, link)| (rank, Arc::clone(link))).collect();
                (links, full, state.waiting.front().map(|one| one.until))
            };
            let now = Instant::now();
            while self.unread.front().is_some_and(|one| one.until <= now) {
                self.unread.pop_front();
            }
            let unread_until = self.unread.front().map(|one| one.until);
            let deadlines = [waits_until, unread_until, arriving.expire(), probing.expire()];

            let mut fds =
                vec![PollFd::new(&self.shared.wake, PollFlags::IN), PollFd::new(&self.inside, PollFlags::IN)];
            fds.extend(self.outside.iter().map(|(listener, _)| PollFd::new(listener, PollFlags::IN)));
            let first_unread = fds.len();
            fds.extend(self.unread.iter().map(|one| PollFd::new(&one.connection, PollFlags::IN)));
            let first_link = fds.len();
            for (rank, link) in &links {
                // The end of a link shows without being asked for.
                let room = if full.contains(rank) { PollFlags::OUT } else { PollFlags::empty() };
                fds.push(PollFd::new(link, room));
            }
            if poll(&mut fds, timeout(deadlines.into_iter().flatten().min()).as_ref()).is_err() {
                continue;
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let ended =
                fds[first_link..].iter().map(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR));
            let ended: Vec<bool> = ended.collect();
            drop(fds);

            if ready[0] {
                let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
            }
            self.forget(&links, &ended);
            self.read_headers(&ready[first_unread..first_link], &mut probing);
            if ready[1] {
                self.accept_rank(&mut arriving);
            }
            if first_unread > 2 && ready[2] {
                self.accept_stranger();
            }
        }
    }

    /// Forgets ranks whose links have ended. One that came back meanwhile has another link.
    fn forget(&self, links: &[(u64, Arc<UnixStream>)], ended: &[bool]) {
        let mut state = self.shared.lock();
        for ((rank, link), _) in links.iter().zip(ended).filter(|(_, ended)| **ended) {
            if state.ranks.get(rank).is_some_and(|current| Arc::ptr_eq(current, link)) {
                state.ranks.remove(rank);
            }
        }
    }

    fn accept_rank(&self, arriving: &mut Strangers<UnixStream>) {
        match self.inside.accept() {
            Ok((link, _)) => {
                let (secret, shared) = (self.secret.clone(), Arc::clone(&self.shared));
                arriving.receive(link, move |mut link| {
                    let mut rank = [0; 8];
                    if prove(&mut link, &secret, Role::Listener, PURPOSE).is_ok()
                        && link.read_exact(&mut rank).is_ok()
                    {
                        shared.lock().ranks.insert(u64::from_le_bytes(rank), Arc::new(link));
                        shared.wake();
                    }
                });
            }
            Err(error) => wait_for_descriptors(&error),
        }
    }

    fn accept_stranger(&mut self) {
        let Some((listener, _)) = &self.outside else { return };
        match listener.accept() {
            Ok((connection, _)) => {
                if self.unread.len() >= MOST {
                    self.unread.pop_front();
                }
                if connection.set_nonblocking(true).is_ok() {
                    let until = Instant::now() + HANDSHAKE_LIMIT;
                    self.unread.push_back(Unread { until, connection, header: [0; 16], read: 0 });
                }
            }
            Err(error) => wait_for_descriptors(&error),
        }
    }

    fn read_headers(&mut self, ready: &[bool], probing: &mut Strangers<TcpStream>) {
        let unread = std::mem::take(&mut self.unread);
        for (mut one, ready) in unread.into_iter().zip(ready) {
            match if *ready { one.read() } else { Said::NotAll } {
                Said::NotAll => self.unread.push_back(one),
                Said::Meant(PROBE) => {
                    if let Some((_, identity)) = self.outside {
                        let secret = self.secret.clone();
                        probing.receive(one.connection, move |stream| answer(&stream, &secret, identity));
                    }
                }
                Said::Meant(rank) => self.shared.hand(rank, one.connection),
                Said::Nonsense => {}
            }
        }
    }
}

/// Pauses if a connection that is there could not be accepted.
fn wait_for_descriptors(error: &io::Error) {
    if error.kind() != io::ErrorKind::WouldBlock {
        thread::sleep(OUT_OF_DESCRIPTORS);
    }
}

/// Digits that nobody guesses.
fn random_digits() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::system("get random bytes")(io::Error::other(error)))?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests;
