//! The rendezvous server: sockets and threads around [`Membership`].
//!
//! One thread accepts connections and is the clock. Every connection has a thread that proves the
//! peer, reads its messages and feeds them to the membership; once joined it also has a thread
//! that writes, so that a rank which does not read (stopped, or swapped out) holds up nobody but
//! itself.
//!
//! The port is open to strangers. Until a peer has proven itself nothing it sends reaches the
//! membership, it has ten seconds, and only [`MAX_UNPROVEN`] may try at a time: when more come, the
//! one that has tried longest is dropped, so that silent connections cannot keep real ranks out.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ronde_trust::{Role, Sealed, SealedReader, SealedWriter, Secret};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::membership::{Action, Event, Membership};
use crate::socket::{HANDSHAKE_LIMIT, prepare};
use crate::wire::{FromRank, FromServer, MAX_MESSAGE, PURPOSE, decode, encode};
use crate::{Error, Loss, Ranks};

/// How many connections may be in their handshake at a time.
const MAX_UNPROVEN: usize = 256;
/// How long the end of a server waits for news to be made of a loss, and written.
const NEWS_LIMIT: Duration = Duration::from_secs(1);
/// How often that end looks again for what nobody announces.
const SEE_OFF_LOOK: Duration = Duration::from_millis(10);

/// The rendezvous of one job. Dropping it closes every connection and ends its threads.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: RawFd,
    acceptor: Option<JoinHandle<()>>,
}

/// Why a server in rank 0's own process comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Rank 0 could not join the job.
    FailedStart,
    /// The process ends.
    Exit,
}

/// The end of a rank's connection to the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Who.
    pub rank: usize,
    /// When the server saw it.
    pub at: Instant,
    /// Whether it said goodbye.
    pub orderly: bool,
}

struct Shared {
    secret: Secret,
    started: Instant,
    /// Written to when the acceptor should look at the clock or the end again.
    wake: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    membership: Membership,
    /// What is to be written to each rank, already encoded.
    outboxes: Vec<Option<Sender<Arc<[u8]>>>>,
    /// Every open connection, by order of arrival, so that the end can close them all.
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// Messages in the outboxes that are not written yet.
    unsent: Arc<AtomicUsize>,
    stopping: bool,
}

struct Connection {
    stream: TcpStream,
    proven: bool,
    /// Those of its two directions, while they are open.
    descriptors: Vec<RawFd>,
}

impl Server {
    /// Listens for the `size` ranks of a job; port 0 picks a free one.
    pub fn start(listen: SocketAddr, secret: Secret, size: usize) -> Result<Server, Error> {
        let cannot_listen = |source| Error::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).map_err(cannot_listen)?;
        listener.set_nonblocking(true).map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;
        let listener_descriptor = listener.as_raw_fd();
        let (waker, wake) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| Error::System { doing: "make a pipe", source: error.into() })?;
        let shared = Arc::new(Shared {
            secret,
            started: Instant::now(),
            wake,
            state: Mutex::new(State {
                membership: Membership::new(size),
                outboxes: vec![None; size],
                connections: BTreeMap::new(),
                next_connection: 0,
                unsent: Arc::default(),
                stopping: false,
            }),
            changed: Condvar::new(),
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("ronde-rdv".to_owned())
                .spawn(move || accept_all(&shared, &listener, &waker))
                .map_err(|source| Error::System { doing: "start a thread", source })?
        };
        Ok(Server { shared, address, listener: listener_descriptor, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Which ranks have joined so far.
    pub fn joined(&self) -> Vec<bool> {
        self.shared.lock().membership.joined()
    }

    /// Tells what the supervisor knows about the end of a rank's process.
    ///
    /// Report every end, with status 0 as well: the rendezvous knows whether the rank had left in
    /// order, in which case nobody is alarmed.
    pub fn report(&self, rank: usize, reason: String) {
        self.shared.handle(Event::Reported { rank, reason });
    }

    /// The first rank that was lost.
    pub fn loss(&self) -> Option<Loss> {
        self.shared.lock().membership.first_loss().cloned()
    }

    /// Whose connections have ended, in the order in which they did.
    pub fn departures(&self) -> Vec<Departure> {
        let state = self.shared.lock();
        let partings = state.membership.partings().iter();
        partings
            .map(|parting| Departure {
                rank: parting.rank,
                at: self.shared.started + parting.at,
                orderly: parting.orderly,
            })
            .collect()
    }

    /// Waits at most `limit` for the job to be over: `Some(Ok)` when all ranks have joined and
    /// left in order, `Some(Err)` with the first loss.
    pub fn wait_over(&self, limit: Duration) -> Option<Result<(), Loss>> {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            if let Some(loss) = state.membership.first_loss() {
                return Some(Err(loss.clone()));
            }
            if state.membership.is_over() {
                return Some(Ok(()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until nobody needs this server any more, which is in rank 0's own process: all other ranks have left, or
    /// everybody has been told of a loss. After `silent`, `say` is told once who is still there.
    pub(crate) fn see_off(&self, end: End, silent: Duration, say: impl FnOnce(&Ranks)) {
        let started = Instant::now();
        let mut say = Some(say);
        let mut lost_at = None;
        let mut state = self.shared.lock();
        loop {
            let others = state.others(end);
            let lost = state.membership.first_loss().is_some();
            let told = lost && state.unsent.load(Ordering::Acquire) == 0;
            // Whoever does not even read the news is not worth waiting for.
            let unheard = lost && lost_at.get_or_insert_with(Instant::now).elapsed() >= NEWS_LIMIT;
            let given_up = end == End::FailedStart && started.elapsed() >= NEWS_LIMIT;
            if others.is_empty() || told || unheard || given_up {
                return;
            }
            if started.elapsed() >= silent
                && let Some(say) = say.take()
            {
                say(&Ranks::new(others));
            }
            let waited = self.shared.changed.wait_timeout(state, SEE_OFF_LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Every descriptor of the server, for a forked child to close. Some are left out if a thread that the child does not
    /// have was just changing them.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let Ok(state) = self.shared.state.try_lock() else { return Vec::new() };
        let streams = state.connections.values();
        let of = |connection: &Connection| {
            let stream = connection.stream.as_raw_fd();
            connection.descriptors.iter().copied().chain([stream]).collect::<Vec<_>>()
        };
        streams.flat_map(of).chain([self.listener, self.shared.wake.as_raw_fd()]).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake();
        if let Some(acceptor) = self.acceptor.take() {
            // A panic over there has been printed already.
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panicking thread leaves the membership as it was between two events.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A full pipe wakes just as well.
        let _ = rustix::io::write(&self.wake, &[1]);
    }

    /// Feeds an event and carries out what follows from it.
    fn handle(&self, event: Event) {
        self.handle_locked(self.lock(), event);
    }

    /// The end of a rank's connection. Its writer, which ends with the outbox, closes the
    /// connection only once the membership knows: whoever left may join again right after.
    fn depart(&self, rank: usize, end: Event) {
        let mut state = self.lock();
        let outbox = state.outboxes[rank].take();
        self.handle_locked(state, end);
        drop(outbox);
    }

    fn handle_locked(&self, mut state: MutexGuard<'_, State>, event: Event) {
        let actions = state.membership.handle(self.started.elapsed(), event);
        state.carry_out(actions);
        drop(state);
        self.changed.notify_all();
        self.wake();
    }
}

impl State {
    /// Who the end of rank 0's process would leave alone. At its exit those that wait for another round wait in vain
    /// anyway; when the start failed, everybody waits and has to hear of it.
    fn others(&self, end: End) -> Vec<usize> {
        let connected = (1..self.outboxes.len()).filter(|rank| self.outboxes[*rank].is_some());
        connected.filter(|rank| end == End::FailedStart || self.membership.is_in_round(*rank)).collect()
    }

    fn carry_out(&self, actions: Vec<Action>) {
        let everybody: Vec<usize> = (0..self.outboxes.len()).collect();
        for action in actions {
            match action {
                // Only a join can be refused, and its connection deals with that itself.
                Action::Refuse { .. } => {}
                Action::SendTable { cards } => {
                    self.send(&everybody, &FromServer::Table { cards });
                }
                Action::CompleteExchange { tag, parts } => {
                    self.send(&everybody, &FromServer::Exchanged { tag, parts });
                }
                Action::FailExchange { to, tag, reason } => {
                    self.send(&to, &FromServer::ExchangeFailed { tag, reason });
                }
                Action::TellMissing { to, ranks } => {
                    self.send(&[to], &FromServer::Missing { ranks });
                }
                Action::Announce { to, loss } => self.send(&to, &FromServer::Lost(loss)),
            }
        }
    }

    fn send(&self, to: &[usize], message: &FromServer) {
        let bytes: Arc<[u8]> = encode(message).into();
        for outbox in to.iter().filter_map(|&rank| self.outboxes[rank].as_ref()) {
            self.unsent.fetch_add(1, Ordering::AcqRel);
            // A writer that has ended has a connection that is about to be reported as lost.
            if outbox.send(Arc::clone(&bytes)).is_err() {
                self.unsent.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Drops the longest-waiting strangers until there is room for another.
    fn make_room(&mut self) {
        let unproven = self.connections.values().filter(|connection| !connection.proven);
        let surplus = (unproven.count() + 1).saturating_sub(MAX_UNPROVEN);
        let strangers = self.connections.values().filter(|connection| !connection.proven);
        for stranger in strangers.take(surplus) {
            let _ = stranger.stream.shutdown(Shutdown::Both);
        }
    }
}

/// The acceptor's thread: new connections, the clock, and at the end everybody out.
fn accept_all(shared: &Arc<Shared>, listener: &TcpListener, waker: &OwnedFd) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    loop {
        let state = shared.lock();
        if state.stopping {
            break;
        }
        let due = state.membership.next_tick();
        drop(state);
        let left = due.map(|due| due.saturating_sub(shared.started.elapsed()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut waits = [PollFd::new(listener, PollFlags::IN), PollFd::new(waker, PollFlags::IN)];
        // Interrupted or not, everything is looked at again.
        let _ = poll(&mut waits, timeout.as_ref());
        let _ = rustix::io::read(waker, &mut [0; 64]);

        if due.is_some_and(|due| shared.started.elapsed() >= due) {
            let mut state = shared.lock();
            let actions = state.membership.handle(shared.started.elapsed(), Event::Tick);
            state.carry_out(actions);
            drop(state);
            shared.changed.notify_all();
        }
        match listener.accept() {
            Ok((stream, _)) => {
                threads.retain(|thread| !thread.is_finished());
                threads.extend(welcome(shared, stream));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // Out of descriptors, most likely: no reason to spin or to end.
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
    let state = shared.lock();
    for connection in state.connections.values() {
        let _ = connection.stream.shutdown(Shutdown::Both);
    }
    drop(state);
    for thread in threads {
        let _ = thread.join();
    }
}

/// Registers a connection and gives it its thread. A connection that cannot have one is closed.
fn welcome(shared: &Arc<Shared>, stream: TcpStream) -> Option<JoinHandle<()>> {
    stream.set_nonblocking(false).ok()?;
    prepare(&stream).ok()?;
    let mut state = shared.lock();
    state.make_room();
    let id = state.next_connection;
    state.next_connection += 1;
    let registered = Connection { stream: stream.try_clone().ok()?, proven: false, descriptors: Vec::new() };
    state.connections.insert(id, registered);
    drop(state);

    let serving = Arc::clone(shared);
    let spawned = thread::Builder::new().name("ronde-rdv-rank".to_owned()).spawn(move || {
        serve(&serving, id, stream);
        serving.lock().connections.remove(&id);
    });
    if spawned.is_err() {
        shared.lock().connections.remove(&id);
    }
    spawned.ok()
}

/// One connection, from handshake to end.
fn serve(shared: &Shared, id: u64, stream: TcpStream) {
    // Strangers get no explanation beyond what the handshake itself says.
    let Ok(sealed) = Sealed::open_within(stream, &shared.secret, Role::Listener, PURPOSE, HANDSHAKE_LIMIT)
    else {
        return;
    };
    let Ok((mut reader, mut writer)) = sealed.into_split() else {
        return;
    };
    let mut state = shared.lock();
    let unsent = Arc::clone(&state.unsent);
    if let Some(connection) = state.connections.get_mut(&id) {
        connection.proven = true;
        connection.descriptors = vec![reader.stream().as_raw_fd(), writer.stream().as_raw_fd()];
    }
    drop(state);
    converse(shared, &mut reader, &mut writer, &unsent);
    // Before they are closed: their numbers may be somebody else's at once.
    if let Some(connection) = shared.lock().connections.get_mut(&id) {
        connection.descriptors.clear();
    }
}

/// What is said on one connection, from the first message on.
fn converse(
    shared: &Shared,
    reader: &mut SealedReader<TcpStream>,
    writer: &mut SealedWriter<TcpStream>,
    unsent: &AtomicUsize,
) {
    let Some(FromRank::Join { rank, size, host, card }) = first_message(reader) else {
        return;
    };
    let (outbox, messages) = mpsc::channel();
    let seat = outbox.clone();
    let event = Event::Joined { rank, size, host, card };
    if let Err(reason) = take_seat(shared, event, rank, seat) {
        let _ = writer.send(&encode(&FromServer::Refused { reason }));
        let _ = writer.stream().shutdown(Shutdown::Write);
        return;
    }
    drop(outbox);
    thread::scope(|scope| {
        let name = "ronde-rdv-write".to_owned();
        let writing =
            thread::Builder::new().name(name).spawn_scoped(scope, || write_all(messages, writer, unsent));
        let end = match writing {
            Ok(_) => read_all(shared, rank, reader),
            Err(error) => Event::ConnectionLost { rank, how: format!("no thread to serve it: {error}") },
        };
        shared.depart(rank, end);
        // Ends the writer, should it be stuck with a peer that no longer reads.
        let _ = reader.stream().shutdown(Shutdown::Both);
    });
}

fn first_message(reader: &mut SealedReader<TcpStream>) -> Option<FromRank> {
    reader.stream().set_read_timeout(Some(HANDSHAKE_LIMIT)).ok()?;
    let message = decode(&reader.recv(MAX_MESSAGE).ok()?).ok()?;
    reader.stream().set_read_timeout(None).ok()?;
    Some(message)
}

/// Joins, with the outbox in place before anything can be sent to it.
fn take_seat(shared: &Shared, event: Event, rank: usize, outbox: Sender<Arc<[u8]>>) -> Result<(), String> {
    let mut state = shared.lock();
    let actions = state.membership.handle(shared.started.elapsed(), event);
    let refusal = actions.iter().find_map(|action| match action {
        Action::Refuse { reason } => Some(reason.clone()),
        _ => None,
    });
    if refusal.is_none() {
        state.outboxes[rank] = Some(outbox);
    }
    state.carry_out(actions);
    drop(state);
    shared.changed.notify_all();
    shared.wake();
    refusal.map_or(Ok(()), Err)
}

/// Reads a joined rank's messages until the connection ends, and says how it did.
fn read_all(shared: &Shared, rank: usize, reader: &mut SealedReader<TcpStream>) -> Event {
    loop {
        let message = reader
            .recv(MAX_MESSAGE)
            .map_err(|error| match error {
                ronde_trust::Error::Closed | ronde_trust::Error::Truncated { .. } => {
                    "its connection closed without a goodbye".to_owned()
                }
                other => format!("its connection failed: {other}"),
            })
            .and_then(|bytes| decode(&bytes));
        match message {
            Ok(FromRank::Exchange { tag, bytes }) => {
                shared.handle(Event::Exchanged { rank, tag, bytes });
            }
            Ok(FromRank::WhoIsMissing) => shared.handle(Event::AskedWhoIsMissing { rank }),
            Ok(FromRank::Fail { reason }) => shared.handle(Event::Failing { rank, reason }),
            Ok(FromRank::GiveUp { reason }) => {
                return Event::ConnectionLost { rank, how: format!("it gave up: {reason}") };
            }
            Ok(FromRank::Leave) => return Event::Left { rank },
            Ok(FromRank::Join { .. }) => {
                return Event::ConnectionLost { rank, how: "it joined twice".to_owned() };
            }
            Err(how) => return Event::ConnectionLost { rank, how },
        }
    }
}

/// Writes what comes until there is no more to come or nobody to take it.
fn write_all(messages: Receiver<Arc<[u8]>>, writer: &mut SealedWriter<TcpStream>, unsent: &AtomicUsize) {
    for message in messages {
        let sent = writer.send(&message);
        unsent.fetch_sub(1, Ordering::AcqRel);
        if sent.is_err() {
            // Wakes the reader, which reports the loss.
            let _ = writer.stream().shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = writer.stream().shutdown(Shutdown::Write);
}
