//! State that collectives, the attendant thread and outside reports meet in.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ronde_trust::Secret;
use rustix::event::{EventfdFlags, eventfd};

use super::neighbour;
use super::{Card, Interrupt, Routes};
use crate::annex::Alarm;
use crate::control::Watch;
use crate::error::{Error, Result};
use crate::host::Segment;
use crate::net::Wire;

/// How long a rank that closed its connection, or left, is given the benefit of the doubt: another may have failed first.
const VERDICT: Duration = Duration::from_millis(600);
/// How long a peer may take to do its part of forming a group or opening a wire.
const PEER_SETUP: Duration = Duration::from_secs(60);

/// A wire is known by its group, the rank at the other end, and its number.
pub(crate) type WireKey = (u64, usize, u32);

pub(crate) struct Shared {
    pub(crate) rank: usize,
    pub(crate) cards: Vec<Card>,
    pub(crate) secret: Secret,
    /// How ranks of other hosts are reached, where a launcher has said so.
    pub(crate) routes: Routes,
    /// How long a rank that does not answer is waited for.
    pub(crate) patience: Duration,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether `state` holds a loss: a look that costs nothing, for those who look all the time.
    lost: AtomicBool,
    alarm: OwnedFd,
    /// Wakes the attendant: the set of neighbours changed, or the fabric closes.
    pub(super) nudge: OwnedFd,
    interrupted: Interrupt,
}

#[derive(Default)]
struct State {
    loss: Option<Error>,
    closing: bool,
    neighbours: HashMap<usize, Arc<UnixStream>>,
    /// Ranks that said goodbye.
    left: Vec<usize>,
    /// Shared memory (and what belongs to it) received for groups not formed here yet.
    memory: HashMap<u64, Vec<OwnedFd>>,
    /// Wires accepted and not yet asked for.
    wires: HashMap<WireKey, TcpStream>,
    segments: Vec<(Vec<usize>, Weak<Segment>)>,
    watches: Vec<(Vec<usize>, Weak<Watch>)>,
    alarms: Vec<Weak<dyn Alarm>>,
    /// Wires in use, and listeners, only to be closed in a forked child.
    opened: Vec<Weak<Wire>>,
    listeners: Vec<RawFd>,
}

impl Shared {
    pub(super) fn new(
        rank: usize,
        cards: Vec<Card>,
        secret: Secret,
        routes: Routes,
        patience: Duration,
        interrupted: Interrupt,
    ) -> Result<Shared> {
        let event = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(Error::errno("making an event descriptor"))
        };
        Ok(Shared {
            rank,
            cards,
            secret,
            routes,
            patience,
            state: Mutex::default(),
            changed: Condvar::new(),
            lost: AtomicBool::new(false),
            alarm: event()?,
            nudge: event()?,
            interrupted,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves no half-done change: each critical section is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable once any rank is lost.
    pub(crate) fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    /// Whether a wait may go on.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_loss()?;
        if (self.interrupted)() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Whether nobody is lost. One load while that is so.
    pub(crate) fn check_loss(&self) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        self.state().loss.clone().map_or(Ok(()), Err)
    }

    /// Whether any rank is lost.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Records the first loss and wakes everybody who waits in this process or sleeps on shared memory.
    pub(crate) fn lose(&self, loss: Error) {
        let (segments, alarms) = {
            let mut state = self.state();
            if state.closing || state.loss.is_some() {
                return;
            }
            state.loss = Some(loss.clone());
            self.lost.store(true, Ordering::Release);
            (std::mem::take(&mut state.segments), std::mem::take(&mut state.alarms))
        };
        let named = if let Error::PeerLost { rank, .. } = loss { rank } else { self.rank };
        for segment in segments.iter().filter_map(|(_, segment)| segment.upgrade()) {
            segment.poison(named);
        }
        let _ = rustix::io::write(&self.alarm, &1u64.to_ne_bytes());
        self.changed.notify_all();
        for alarm in alarms.iter().filter_map(Weak::upgrade) {
            alarm.ring();
        }
    }

    /// Who is to blame when `peer` stopped taking part: whoever was reported lost first, if that becomes known
    /// soon, else the peer itself.
    pub(crate) fn verdict(&self, peer: usize, seen: &str) -> Error {
        self.loss_soon().unwrap_or_else(|| self.peer_error(peer, seen))
    }

    /// The first loss, if it becomes known soon. Ranks that give up because of one also leave in order, and word of that may
    /// come first.
    pub(super) fn loss_soon(&self) -> Option<Error> {
        let waited = self.changed.wait_timeout_while(self.state(), VERDICT, |state| state.loss.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.loss.clone()
    }

    fn peer_error(&self, rank: usize, reason: &str) -> Error {
        let reason = if self.state().left.contains(&rank) { "it left the job" } else { reason };
        Error::PeerLost { rank, host: self.host_of(rank), reason: reason.to_owned() }
    }

    /// Who is to blame when no connection to `peer` can be made: as for [`Shared::verdict`], and else the address.
    pub(crate) fn unreachable(&self, peer: usize, address: SocketAddr, reason: String) -> Error {
        match self.loss_soon() {
            Some(loss) => loss,
            None if self.state().left.contains(&peer) => self.peer_error(peer, ""),
            None => Error::Unreachable { rank: peer, host: self.host_of(peer), address, reason },
        }
    }

    /// Waits, but not for longer than it makes sense: an error if a rank is lost or the wait is to be given up.
    pub(crate) fn pause(&self, time: Duration) -> Result<()> {
        drop(self.changed.wait_timeout_while(self.state(), time, |state| state.loss.is_none()));
        self.check()
    }

    pub(crate) fn host_of(&self, rank: usize) -> String {
        self.cards.get(rank).map_or_else(String::new, |card| card.host.clone())
    }

    /// Waits until `take` finds what it looks for.
    fn await_state<T>(
        &self,
        peer: usize,
        what: &str,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T> {
        const LOOK: Duration = Duration::from_millis(100);
        let deadline = Instant::now() + PEER_SETUP;
        let mut state = self.state();
        loop {
            if let Some(found) = take(&mut state) {
                return Ok(found);
            }
            if let Some(loss) = &state.loss {
                return Err(loss.clone());
            }
            if state.left.contains(&peer) || Instant::now() > deadline {
                drop(state);
                return Err(
                    self.verdict(peer, &format!("{what} did not come within {} s", PEER_SETUP.as_secs()))
                );
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            if (self.interrupted)() {
                return Err(Error::Interrupted);
            }
        }
    }

    pub(super) fn await_neighbour(&self, peer: usize) -> Result<()> {
        self.await_state(peer, "its local connection", |state| {
            state.neighbours.contains_key(&peer).then_some(())
        })
    }

    pub(crate) fn await_memory(&self, group: u64, from: usize) -> Result<OwnedFd> {
        let [memory] = self.await_descriptors(group, from)?;
        Ok(memory)
    }

    /// Shared memory for a group and what was handed over with it, `N` descriptors in all.
    pub(crate) fn await_descriptors<const N: usize>(&self, group: u64, from: usize) -> Result<[OwnedFd; N]> {
        let got = self.await_state(from, "its shared memory", |state| state.memory.remove(&group))?;
        got.try_into().map_err(|got: Vec<OwnedFd>| {
            self.peer_error(from, &format!("it handed over {} descriptors where {N} belong", got.len()))
        })
    }

    pub(crate) fn await_wire(&self, key: WireKey) -> Result<TcpStream> {
        self.await_state(key.1, "its connection", |state| state.wires.remove(&key))
    }

    pub(super) fn deliver_wire(&self, key: WireKey, stream: TcpStream) {
        self.state().wires.insert(key, stream);
        self.changed.notify_all();
    }

    pub(super) fn deliver_memory(&self, group: u64, descriptors: Vec<OwnedFd>) {
        self.state().memory.insert(group, descriptors);
        self.changed.notify_all();
    }

    pub(super) fn add_neighbour(&self, peer: usize, link: Arc<UnixStream>) {
        self.state().neighbours.insert(peer, link);
        self.changed.notify_all();
        self.nudge();
    }

    /// The links to neighbours, for the attendant to poll; `None` once the fabric closes.
    pub(super) fn neighbours(&self) -> Option<Vec<(usize, Arc<UnixStream>)>> {
        let state = self.state();
        if state.closing {
            return None;
        }
        Some(state.neighbours.iter().map(|(&rank, link)| (rank, link.clone())).collect())
    }

    /// A neighbour says why it is about to end.
    pub(super) fn neighbour_failing(&self, peer: usize, reason: String) {
        self.lose(Error::PeerLost { rank: peer, host: self.host_of(peer), reason });
    }

    /// Tells all neighbours why this rank is about to end.
    pub(super) fn failing(&self, reason: &str) {
        let neighbours: Vec<_> = self.state().neighbours.values().cloned().collect();
        for link in neighbours {
            neighbour::send_failing(&link, reason);
        }
    }

    /// A neighbour is gone: in order, or not.
    pub(super) fn neighbour_gone(&self, peer: usize, in_order: bool) {
        let (poisoned, told): (Vec<_>, Vec<_>) = {
            let mut state = self.state();
            state.neighbours.remove(&peer);
            if in_order {
                state.left.push(peer);
            }
            let with_peer = state.segments.iter().filter(|(members, _)| members.contains(&peer));
            let watches = state.watches.iter().filter(|(members, _)| members.contains(&peer));
            (
                with_peer.filter_map(|(_, segment)| segment.upgrade()).collect(),
                watches.filter_map(|(_, watch)| watch.upgrade()).collect(),
            )
        };
        if in_order {
            for segment in poisoned {
                segment.poison(peer);
            }
            for watch in told {
                watch.departed(peer);
            }
            self.changed.notify_all();
        } else {
            let reason = "its process ended without leaving the job".to_owned();
            self.lose(Error::PeerLost { rank: peer, host: self.host_of(peer), reason });
        }
    }

    /// Hands shared memory for a group to a neighbour.
    pub(crate) fn give_memory(&self, peer: usize, group: u64, memory: BorrowedFd<'_>) -> Result<()> {
        self.give_descriptors(peer, group, &[memory])
    }

    /// The same, with more descriptors that belong to it.
    pub(crate) fn give_descriptors(
        &self,
        peer: usize,
        group: u64,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let link = self.state().neighbours.get(&peer).cloned();
        match link {
            Some(link) => neighbour::send_memory(&link, group, descriptors),
            None => Err(self.verdict(peer, "it is not connected")),
        }
    }

    /// From now on `segment` is poisoned when one of `members` is lost.
    pub(crate) fn guard(&self, members: Vec<usize>, segment: Weak<Segment>) -> Result<()> {
        let mut state = self.with_all_there(&members)?;
        state.segments.retain(|(_, segment)| segment.strong_count() > 0);
        state.segments.push((members, segment));
        Ok(())
    }

    /// From now on `alarm` is told when any rank is lost.
    pub(crate) fn on_loss(&self, alarm: Weak<dyn Alarm>) -> Result<()> {
        let mut state = self.with_all_there(&[])?;
        state.alarms.retain(|alarm| alarm.strong_count() > 0);
        state.alarms.push(alarm);
        Ok(())
    }

    /// From now on `watch` is told when one of `members` leaves in order.
    pub(crate) fn watch(&self, members: Vec<usize>, watch: Weak<Watch>) -> Result<()> {
        let mut state = self.with_all_there(&members)?;
        state.watches.retain(|(_, watch)| watch.strong_count() > 0);
        state.watches.push((members, watch));
        Ok(())
    }

    /// The state, if nobody is lost and none of `members` has left.
    fn with_all_there(&self, members: &[usize]) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if let Some(loss) = &state.loss {
            return Err(loss.clone());
        }
        if let Some(&left) = members.iter().find(|member| state.left.contains(member)) {
            drop(state);
            return Err(self.verdict(left, ""));
        }
        Ok(state)
    }

    pub(crate) fn remember_wire(&self, wire: &Arc<Wire>) {
        let mut state = self.state();
        state.opened.retain(|wire| wire.strong_count() > 0);
        state.opened.push(Arc::downgrade(wire));
    }

    pub(super) fn remember_listeners(&self, listeners: impl IntoIterator<Item = RawFd>) {
        self.state().listeners.extend(listeners);
    }

    /// All sockets of this fabric. Does not wait for the lock: in a forked child its holder does not exist.
    pub(super) fn sockets(&self) -> Vec<RawFd> {
        let Ok(state) = self.state.try_lock() else { return Vec::new() };
        let wires = state.opened.iter().filter_map(|wire| Some(wire.upgrade()?.stream.as_raw_fd()));
        let neighbours = state.neighbours.values().map(AsRawFd::as_raw_fd);
        wires.chain(neighbours).chain(state.listeners.iter().copied()).collect()
    }

    pub(super) fn nudge(&self) {
        let _ = rustix::io::write(&self.nudge, &1u64.to_ne_bytes());
    }

    /// Leaves in order and stops the attendant.
    pub(super) fn goodbye(&self) {
        let neighbours = {
            let mut state = self.state();
            state.closing = true;
            std::mem::take(&mut state.neighbours)
        };
        for link in neighbours.values() {
            neighbour::send_goodbye(link);
        }
        self.nudge();
    }
}
