//! A rank's side of the rendezvous.
//!
//! One thread reads what the server says into a shared state; callers wait on that state, looking
//! up about every 100 ms to ask whether they were interrupted, because a Python program in
//! `init()` should still answer Ctrl-C.
//!
//! A forked child inherits the sockets but not the thread. It must leave the connection alone,
//! which belongs to the parent: [`Client`] remembers the process that made it and does nothing in
//! any other, not even when dropped.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ronde_trust::{Role, Sealed, SealedReader, SealedWriter, Secret};

use crate::socket::{HANDSHAKE_LIMIT, prepare};
use crate::wire::{FromRank, FromServer, MAX_MESSAGE, MAX_PAYLOAD, PURPOSE, decode, encode};
use crate::{Error, JobSpec, Loss, Ranks};

/// How often a wait looks up to see whether it was interrupted.
pub(crate) const LOOK_UP: Duration = Duration::from_millis(100);
/// How long connecting is tried again while nobody listens: the server may come up a little later.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Characters of a failure's reason that travel.
const LONGEST_REASON: usize = 4000;
/// How long a goodbye, or the question who is missing, may take.
const COURTESY: Duration = Duration::from_secs(1);

/// All parts in rank order, or why there are none.
type Outcome = Result<Vec<Vec<u8>>, String>;
type Listener = Box<dyn Fn(&Loss) + Send>;

/// A rank's membership in its job. Dropping it without [`leave`](Client::leave) counts as a loss.
pub struct Client {
    shared: Arc<Shared>,
    writer: Mutex<SealedWriter<TcpStream>>,
    /// Only for its descriptor and for shutting down.
    stream: TcpStream,
    descriptors: [RawFd; 3],
    reader: Option<JoinHandle<()>>,
    process: u32,
}

struct Shared {
    server: String,
    state: Mutex<State>,
    changed: Condvar,
    listeners: Mutex<Vec<Listener>>,
}

#[derive(Default)]
struct State {
    table: Option<Vec<Vec<u8>>>,
    /// Exchanges this rank takes part in, and their outcome once there is one.
    exchanges: HashMap<String, Option<Outcome>>,
    refused: Option<String>,
    missing: Option<Vec<usize>>,
    loss: Option<Loss>,
    leaving: bool,
    ended: bool,
}

impl Client {
    /// Joins the job and waits until all ranks have; returns every rank's card in rank order.
    ///
    /// `card` is given the local address of the control connection, which is one that peers can
    /// be offered, and returns this rank's card. `interrupted` is asked about every 100 ms while
    /// waiting; when it says yes, this returns [`Error::Interrupted`].
    pub fn join(
        spec: &JobSpec,
        card: impl FnOnce(SocketAddr) -> Vec<u8>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(Client, Vec<Vec<u8>>), Error> {
        let started = Instant::now();
        let sealed = connect(spec, interrupted)?;
        let failed = |source| Error::System { doing: "use the control connection", source };
        let local = sealed.stream().local_addr().map_err(failed)?;
        let stream = sealed.stream().try_clone().map_err(failed)?;
        let (reader, writer) = sealed.into_split().map_err(|error| failed(std::io::Error::other(error)))?;
        let descriptors = [stream.as_raw_fd(), reader.stream().as_raw_fd(), writer.stream().as_raw_fd()];

        let shared = Arc::new(Shared {
            server: spec.server.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
            listeners: Mutex::default(),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("ronde-rendezvous".to_owned())
                .spawn(move || read_all(&shared, reader))
                .map_err(|source| Error::System { doing: "start a thread", source })?
        };
        let client = Client {
            shared,
            writer: Mutex::new(writer),
            stream,
            descriptors,
            reader: Some(thread),
            process: std::process::id(),
        };
        let place = spec.place;
        let card = card(local);
        if card.len() > MAX_PAYLOAD {
            return Err(Error::TooLong { what: "a card", length: card.len(), max: MAX_PAYLOAD });
        }
        client.send(&FromRank::Join { rank: place.rank, size: place.size, host: host_name(), card })?;
        let deadline = started + spec.start_timeout;
        let outcome = client.wait(Some(deadline), interrupted, |state| {
            state.refused.take().map(Err).or_else(|| state.table.take().map(Ok))
        })?;
        match outcome {
            Some(Ok(cards)) => Ok((client, cards)),
            Some(Err(reason)) => Err(Error::Refused { rank: place.rank, reason }),
            None => Err(client.start_timeout(started, interrupted)),
        }
    }

    /// Everybody gives bytes under the same tag, everybody gets all of them in rank order.
    pub fn exchange(
        &self,
        tag: &str,
        bytes: Vec<u8>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<u8>>, Error> {
        if bytes.len() > MAX_PAYLOAD {
            let length = bytes.len();
            return Err(Error::TooLong { what: "an exchange", length, max: MAX_PAYLOAD });
        }
        let failed = |reason: &str| Error::Exchange { tag: tag.into(), reason: reason.into() };
        if self.shared.lock().exchanges.insert(tag.to_owned(), None).is_some() {
            return Err(failed("this rank already waits in an exchange of that name"));
        }
        let outcome = self
            .send(&FromRank::Exchange { tag: tag.to_owned(), bytes })
            .and_then(|()| self.wait(None, interrupted, |state| state.exchanges.get_mut(tag)?.take()));
        self.shared.lock().exchanges.remove(tag);
        match outcome? {
            Some(Ok(parts)) => Ok(parts),
            Some(Err(reason)) => Err(failed(&reason)),
            None => Err(Error::Interrupted),
        }
    }

    /// Has `f` called, on the reading thread, whenever a rank is lost or the rendezvous itself is
    /// (then without a rank). If a loss was seen before, `f` is called at once, here.
    pub fn on_loss(&self, f: impl Fn(&Loss) + Send + 'static) {
        let mut listeners = self.shared.listeners();
        // With the listeners held, a loss either is in the state already or will find `f`.
        let seen = self.shared.lock().loss.clone();
        if let Some(loss) = seen {
            f(&loss);
        }
        listeners.push(Box::new(f));
    }

    /// The first loss this rank was told of.
    pub fn loss(&self) -> Option<Loss> {
        self.shared.lock().loss.clone()
    }

    /// Tells the others that this rank is about to end, and why, so that they fail with that reason and not because it
    /// has left.
    pub fn fail(&self, reason: &str) {
        if !self.is_inherited() {
            let reason = reason.chars().take(LONGEST_REASON).collect();
            // If the rendezvous is gone, its loss is what the others hear of.
            let _ = self.send(&FromRank::Fail { reason });
        }
    }

    /// Says goodbye: the others see that this rank left in order.
    pub fn leave(self) {
        if self.is_inherited() {
            return;
        }
        self.shared.lock().leaving = true;
        if self.send(&FromRank::Leave).is_ok() {
            let _ = self.stream.shutdown(Shutdown::Write);
            // Closing at once could overtake the goodbye if something unread lies here.
            let state = self.shared.lock();
            let ended = |state: &mut State| !state.ended;
            drop(self.shared.changed.wait_timeout_while(state, COURTESY, ended));
        }
    }

    /// The descriptors of the control connection, for a handler that closes them in a forked
    /// child: while a child holds them open, nobody sees the parent's death.
    pub fn descriptors(&self) -> [RawFd; 3] {
        self.descriptors
    }

    fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    fn send(&self, message: &FromRank) -> Result<(), Error> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match writer.send(&encode(message)) {
            Ok(()) => Ok(()),
            // The reading thread hears why within moments, and leaves it in the state.
            Err(error) => {
                let deadline = Some(Instant::now() + COURTESY);
                match self.wait(deadline, &|| false, |state| state.ended.then_some(()))? {
                    Some(()) => Ok(()),
                    None => Err(Error::Lost(Loss {
                        rank: None,
                        host: self.shared.server.clone(),
                        reason: error.to_string(),
                    })),
                }
            }
        }
    }

    /// Waits until `ready` finds what it looks for; `None` at the deadline.
    fn wait<T>(
        &self,
        deadline: Option<Instant>,
        interrupted: &dyn Fn() -> bool,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = ready(&mut state) {
                return Ok(Some(found));
            }
            if let Some(loss) = &state.loss {
                return Err(Error::Lost(loss.clone()));
            }
            let left =
                deadline.map_or(LOOK_UP, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.shared.changed.wait_timeout(state, left.min(LOOK_UP));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            // Asked without the lock: the answer may take Python's own.
            drop(state);
            if interrupted() {
                return Err(Error::Interrupted);
            }
            state = self.shared.lock();
        }
    }

    fn start_timeout(&self, started: Instant, interrupted: &dyn Fn() -> bool) -> Error {
        let asked = self.send(&FromRank::WhoIsMissing).and_then(|()| {
            let deadline = Some(Instant::now() + COURTESY);
            self.wait(deadline, interrupted, |state| state.missing.take())
        });
        let missing = match asked {
            Ok(missing) => Ranks::new(missing.unwrap_or_default()),
            Err(error) => return error,
        };
        let error = Error::StartTimeout { waited: started.elapsed(), missing };
        // So that the others hear who is really missing, not that this rank is.
        let _ = self.send(&FromRank::GiveUp { reason: error.to_string() });
        error
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        self.shared.lock().leaving = true;
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            // Dropped by a listener, this is the reading thread itself.
            if reader.thread().id() != thread::current().id() {
                let _ = reader.join();
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, loss: Loss) {
        let listeners = self.listeners();
        let mut state = self.lock();
        state.loss.get_or_insert_with(|| loss.clone());
        drop(state);
        self.changed.notify_all();
        for listener in listeners.iter() {
            listener(&loss);
        }
    }
}

/// The reading thread: what the server says, until the connection ends.
fn read_all(shared: &Shared, mut reader: SealedReader<TcpStream>) {
    let end = loop {
        let message = match reader.recv(MAX_MESSAGE) {
            Ok(bytes) => decode(&bytes),
            Err(ronde_trust::Error::Closed | ronde_trust::Error::Truncated { .. }) => {
                Err("it closed the connection".to_owned())
            }
            Err(error) => Err(error.to_string()),
        };
        let mut state = shared.lock();
        match message {
            Ok(FromServer::Table { cards }) => state.table = Some(cards),
            Ok(FromServer::Refused { reason }) => state.refused = Some(reason),
            Ok(FromServer::Missing { ranks }) => state.missing = Some(ranks),
            Ok(FromServer::Exchanged { tag, parts }) => state.exchanged(&tag, Ok(parts)),
            Ok(FromServer::ExchangeFailed { tag, reason }) => state.exchanged(&tag, Err(reason)),
            Ok(FromServer::Lost(loss)) => {
                drop(state);
                shared.lose(loss);
            }
            Err(reason) => break reason,
        }
        shared.changed.notify_all();
    };
    let mut state = shared.lock();
    state.ended = true;
    let expected = state.leaving || state.refused.is_some();
    drop(state);
    shared.changed.notify_all();
    if !expected {
        shared.lose(Loss { rank: None, host: shared.server.clone(), reason: end });
    }
}

impl State {
    /// Keeps an outcome that somebody waits for; one from an earlier round is nobody's.
    fn exchanged(&mut self, tag: &str, outcome: Outcome) {
        if let Some(slot) = self.exchanges.get_mut(tag) {
            *slot = Some(outcome);
        }
    }
}

/// Connects and shakes hands, trying again for a while where that can help.
fn connect(spec: &JobSpec, interrupted: &dyn Fn() -> bool) -> Result<Sealed<TcpStream>, Error> {
    let deadline = Instant::now() + CONNECT_PATIENCE.min(spec.start_timeout);
    loop {
        let reason = match attempt(&spec.server, &spec.secret) {
            Ok(sealed) => return Ok(sealed),
            Err(Attempt::Final(error)) => return Err(error),
            Err(Attempt::Again(reason)) => reason,
        };
        if interrupted() {
            return Err(Error::Interrupted);
        }
        if Instant::now() >= deadline {
            return Err(Error::Unreachable { server: spec.server.clone(), reason });
        }
        thread::sleep(LOOK_UP);
    }
}

/// Why an attempt to connect failed: for good, or because nobody is there yet.
pub(crate) enum Attempt {
    Final(Error),
    Again(String),
}

/// Connects and shakes hands, once.
pub(crate) fn attempt(server: &str, secret: &Secret) -> Result<Sealed<TcpStream>, Attempt> {
    use ronde_trust::Error as Trust;
    let addresses = server.to_socket_addrs();
    let addresses = addresses.map_err(|error| Attempt::Again(error.to_string()))?;
    let mut met = "its name has no address".to_owned();
    for address in addresses {
        let connected = TcpStream::connect_timeout(&address, Duration::from_secs(1))
            .and_then(|stream| prepare(&stream).map(|()| stream));
        let stream = match connected {
            Ok(stream) => stream,
            Err(error) => {
                met = error.to_string();
                continue;
            }
        };
        let role = Role::Dialer;
        match Sealed::open_within(stream, secret, role, PURPOSE, HANDSHAKE_LIMIT) {
            Ok(sealed) => return Ok(sealed),
            Err(Trust::Rejected | Trust::Unproven) => {
                return Err(Attempt::Final(Error::SecretRejected { server: server.to_owned() }));
            }
            // Something else listens there: it will not turn into a rendezvous.
            Err(error @ (Trust::NotOurs | Trust::TimedOut)) => {
                let (server, reason) = (server.to_owned(), error.to_string());
                return Err(Attempt::Final(Error::Unreachable { server, reason }));
            }
            Err(error) => met = error.to_string(),
        }
    }
    Err(Attempt::Again(met))
}

/// What this host calls itself.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
