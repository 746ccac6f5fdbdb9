//! Who is in the job, decided without sockets, threads or a clock of its own.
//!
//! The server feeds [`Event`]s with the time they happened and carries out the [`Action`]s that
//! come back. Time is a plain duration since the server started, so that tests own it.
//!
//! A job goes through *rounds*: all ranks join, get the table of cards, exchange, leave; scripts
//! that call `shutdown()` and `init()` again start the next round. A rank's seat remembers the
//! last round it joined.
//!
//! A loss is announced once two things are known: that the rank is gone (its connection broke)
//! and why (the supervisor's report). Either may come first, and the second may never come, so
//! each suspicion waits at most [`PATIENCE`] for the other half. Suspicions resolve in the order
//! in which they arose: a rank that failed because of another is never announced before it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::Loss;
use crate::wire::MAX_PAYLOAD;

/// How long a suspicion waits for the other half of its evidence.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Somebody who knows the secret wants to be this rank.
    Joined { rank: usize, size: usize, host: String, card: Vec<u8> },
    /// A rank gave its part of an exchange.
    Exchanged { rank: usize, tag: String, bytes: Vec<u8> },
    /// A rank asks who has not joined.
    AskedWhoIsMissing { rank: usize },
    /// A rank said that it is about to end, and why.
    Failing { rank: usize, reason: String },
    /// A rank said goodbye.
    Left { rank: usize },
    /// A rank's connection ended without a goodbye.
    ConnectionLost { rank: usize, how: String },
    /// The supervisor saw the end of a rank's process, whatever its status.
    Reported { rank: usize, reason: String },
    /// Time passed.
    Tick,
}

/// What the server has to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Turn away the one who just tried to join.
    Refuse { reason: String },
    /// Everybody is here: send all cards to all.
    SendTable { cards: Vec<Vec<u8>> },
    /// Everybody gave: send all parts to all.
    CompleteExchange { tag: String, parts: Vec<Vec<u8>> },
    /// These ranks wait for something that cannot happen.
    FailExchange { to: Vec<usize>, tag: String, reason: String },
    /// Tell one rank who has not joined.
    TellMissing { to: usize, ranks: Vec<usize> },
    /// Tell these ranks that one is gone.
    Announce { to: Vec<usize>, loss: Loss },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Presence {
    /// Never seen.
    Awaited,
    /// Connected; `round` of the seat says for which round.
    Here,
    /// Said goodbye; may come back for the next round.
    Left,
    /// Said goodbye, and its process has ended since.
    Ended { reason: String },
    /// Gone without a goodbye, announced or about to be.
    Lost,
}

#[derive(Debug)]
struct Seat {
    presence: Presence,
    round: usize,
    host: String,
    card: Vec<u8>,
}

#[derive(Debug)]
struct Suspicion {
    rank: usize,
    since: Duration,
    disconnected: Option<String>,
    reported: Option<String>,
}

impl Suspicion {
    fn is_ripe(&self, now: Duration) -> bool {
        (self.disconnected.is_some() && self.reported.is_some()) || now >= self.since + PATIENCE
    }
}

/// The end of a rank's connection, in order or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parting {
    pub(crate) rank: usize,
    pub(crate) at: Duration,
    pub(crate) orderly: bool,
}

/// The state of one job's membership.
#[derive(Debug)]
pub(crate) struct Membership {
    seats: Vec<Seat>,
    /// How many tables were sent, which is also the number of the running round.
    tables: usize,
    exchanges: BTreeMap<String, Vec<Option<Vec<u8>>>>,
    suspicions: VecDeque<Suspicion>,
    losses: Vec<Loss>,
    partings: Vec<Parting>,
}

impl Membership {
    pub(crate) fn new(size: usize) -> Membership {
        let empty = || Seat { presence: Presence::Awaited, round: 0, host: String::new(), card: Vec::new() };
        Membership {
            seats: std::iter::repeat_with(empty).take(size).collect(),
            tables: 0,
            exchanges: BTreeMap::new(),
            suspicions: VecDeque::new(),
            losses: Vec::new(),
            partings: Vec::new(),
        }
    }

    /// Takes in one event. Actions are to be carried out in order.
    pub(crate) fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = match event {
            Event::Joined { rank, size, host, card } => self.join(rank, size, host, card),
            Event::Exchanged { rank, tag, bytes } => self.exchange(rank, tag, bytes),
            Event::AskedWhoIsMissing { rank } => {
                vec![Action::TellMissing { to: rank, ranks: self.missing() }]
            }
            Event::Failing { rank, reason } => self.fail(now, rank, reason),
            Event::Left { rank } => self.leave(now, rank),
            Event::ConnectionLost { rank, how } => {
                self.partings.push(Parting { rank, at: now, orderly: false });
                self.suspect(now, rank, |suspicion| suspicion.disconnected = Some(how));
                Vec::new()
            }
            Event::Reported { rank, reason } => self.report(now, rank, reason),
            Event::Tick => Vec::new(),
        };
        while self.suspicions.front().is_some_and(|suspicion| suspicion.is_ripe(now)) {
            if let Some(suspicion) = self.suspicions.pop_front() {
                actions.push(self.lose(suspicion));
            }
        }
        actions
    }

    /// When a [`Event::Tick`] is due at the latest.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        self.suspicions.front().map(|suspicion| suspicion.since + PATIENCE)
    }

    /// Which ranks have ever joined.
    pub(crate) fn joined(&self) -> Vec<bool> {
        self.seats.iter().map(|seat| seat.round > 0).collect()
    }

    /// Whether a rank takes part in the running round, and not merely waits for the next.
    pub(crate) fn is_in_round(&self, rank: usize) -> bool {
        let seat = &self.seats[rank];
        seat.presence == Presence::Here && seat.round <= self.tables
    }

    /// The first loss, if there was one.
    pub(crate) fn first_loss(&self) -> Option<&Loss> {
        self.losses.first()
    }

    /// Whose connections have ended, in that order.
    pub(crate) fn partings(&self) -> &[Parting] {
        &self.partings
    }

    /// Whether the table was sent and everybody has said goodbye since.
    pub(crate) fn is_over(&self) -> bool {
        let gone = |seat: &Seat| matches!(seat.presence, Presence::Left | Presence::Ended { .. });
        self.tables > 0 && self.seats.iter().all(gone)
    }

    fn join(&mut self, rank: usize, size: usize, host: String, card: Vec<u8>) -> Vec<Action> {
        let expected = self.seats.len();
        let refuse = |reason| vec![Action::Refuse { reason }];
        if size != expected {
            return refuse(format!("it expects {size} ranks, but this job has {expected}"));
        }
        let Some(seat) = self.seats.get_mut(rank) else {
            return refuse(format!("this job has {expected} ranks, counted from 0"));
        };
        match seat.presence {
            Presence::Awaited | Presence::Left => {}
            Presence::Here => {
                return refuse(format!("rank {rank} has already joined, from {}", seat.host));
            }
            Presence::Ended { .. } | Presence::Lost => {
                return refuse(format!("rank {rank} was in this job before, and is gone"));
            }
        }
        if card.len() > MAX_PAYLOAD / expected {
            return refuse(format!("its card of {} bytes is too long for a job of {expected}", card.len()));
        }
        *seat = Seat { presence: Presence::Here, round: self.tables + 1, host, card };

        // Whoever is back is not gone any more.
        self.partings.retain(|parting| parting.rank != rank);
        if let Some(loss) = self.losses.first() {
            return vec![Action::Announce { to: vec![rank], loss: loss.clone() }];
        }
        if let Some((gone, reason)) = self.ended() {
            let loss = self.loss_of(gone, reason);
            self.losses.push(loss.clone());
            return vec![Action::Announce { to: self.present(), loss }];
        }
        if self.missing().is_empty() {
            self.tables += 1;
            let cards = self.seats.iter_mut().map(|seat| std::mem::take(&mut seat.card)).collect();
            return vec![Action::SendTable { cards }];
        }
        Vec::new()
    }

    fn exchange(&mut self, rank: usize, tag: String, bytes: Vec<u8>) -> Vec<Action> {
        // Whoever exchanges after a loss has been told of the loss already.
        if !self.losses.is_empty() {
            return Vec::new();
        }
        let size = self.seats.len();
        let parts = self.exchanges.entry(tag.clone()).or_insert_with(|| vec![None; size]);
        if parts[rank].is_some() {
            let reason = format!("rank {rank} gave its part twice");
            return vec![Action::FailExchange { to: vec![rank], tag, reason }];
        }
        parts[rank] = Some(bytes);
        if parts.iter().flatten().map(Vec::len).sum::<usize>() > MAX_PAYLOAD {
            let reason = format!("all parts together are longer than {MAX_PAYLOAD} bytes");
            return vec![self.fail_exchange(tag, reason)];
        }
        if parts.iter().all(Option::is_some) {
            let parts = self.exchanges.remove(&tag).unwrap_or_default();
            let parts = parts.into_iter().flatten().collect();
            return vec![Action::CompleteExchange { tag, parts }];
        }
        let without_part =
            |rank: &usize| self.exchanges.get(&tag).is_some_and(|parts| parts[*rank].is_none());
        match (0..size).filter(without_part).find(|&rank| self.has_left_round(rank)) {
            Some(gone) => vec![self.fail_exchange(tag, self.goodbye_of(gone))],
            None => Vec::new(),
        }
    }

    /// A rank's own word needs no second witness, but it waits behind suspicions that arose earlier.
    fn fail(&mut self, now: Duration, rank: usize, reason: String) -> Vec<Action> {
        // Whoever ends because of it may be gone sooner than the rank itself, which still has a traceback to write.
        self.partings.push(Parting { rank, at: now, orderly: false });
        self.suspect(now, rank, |suspicion| {
            suspicion.disconnected = Some(String::new());
            suspicion.reported = Some(reason);
        });
        Vec::new()
    }

    fn leave(&mut self, now: Duration, rank: usize) -> Vec<Action> {
        if self.seats[rank].presence == Presence::Lost {
            return Vec::new();
        }
        self.partings.push(Parting { rank, at: now, orderly: true });
        if self.seats[rank].round > self.tables {
            // The others still wait for the table, which needs this rank.
            self.suspect(now, rank, |suspicion| {
                suspicion.disconnected = Some("it left while the job was starting".to_owned());
            });
            return Vec::new();
        }
        let reported = self.suspicions.iter().position(|suspicion| suspicion.rank == rank);
        // A report that overtook the goodbye: nothing was wrong.
        let ended =
            reported.and_then(|index| self.suspicions.remove(index)).and_then(|suspicion| suspicion.reported);
        self.seats[rank].presence = ended.map_or(Presence::Left, |reason| Presence::Ended { reason });

        let waiting_for_it: Vec<String> = self
            .exchanges
            .iter()
            .filter(|(_, parts)| parts[rank].is_none())
            .map(|(tag, _)| tag.clone())
            .collect();
        let reason = self.goodbye_of(rank);
        waiting_for_it.into_iter().map(|tag| self.fail_exchange(tag, reason.clone())).collect()
    }

    fn report(&mut self, now: Duration, rank: usize, reason: String) -> Vec<Action> {
        let Some(seat) = self.seats.get_mut(rank) else {
            return Vec::new();
        };
        match seat.presence {
            Presence::Left => {
                seat.presence = Presence::Ended { reason: reason.clone() };
                let somebody_waits_for_it =
                    self.seats.iter().any(|seat| seat.presence == Presence::Here && seat.round > self.tables);
                if !somebody_waits_for_it || !self.losses.is_empty() {
                    return Vec::new();
                }
                let loss = self.loss_of(rank, reason);
                self.losses.push(loss.clone());
                vec![Action::Announce { to: self.present(), loss }]
            }
            Presence::Awaited => {
                self.suspect(now, rank, |suspicion| {
                    suspicion.disconnected = Some(String::new());
                    suspicion.reported = Some(format!("{reason} before it called init()"));
                });
                Vec::new()
            }
            Presence::Here | Presence::Lost => {
                self.suspect(now, rank, |suspicion| suspicion.reported = Some(reason));
                Vec::new()
            }
            Presence::Ended { .. } => Vec::new(),
        }
    }

    /// Adds evidence against a rank, unless its loss was announced already.
    fn suspect(&mut self, now: Duration, rank: usize, evidence: impl FnOnce(&mut Suspicion)) {
        if let Some(known) = self.suspicions.iter_mut().find(|known| known.rank == rank) {
            evidence(known);
        } else if self.seats[rank].presence != Presence::Lost {
            let mut suspicion = Suspicion { rank, since: now, disconnected: None, reported: None };
            evidence(&mut suspicion);
            self.suspicions.push_back(suspicion);
        }
        if self.suspicions.iter().any(|known| known.rank == rank && known.disconnected.is_some()) {
            self.seats[rank].presence = Presence::Lost;
        }
    }

    fn lose(&mut self, suspicion: Suspicion) -> Action {
        self.seats[suspicion.rank].presence = Presence::Lost;
        let reason = suspicion.reported.or(suspicion.disconnected).unwrap_or_default();
        let loss = self.loss_of(suspicion.rank, reason);
        self.losses.push(loss.clone());
        // Nothing that was under way can complete, and everybody hears why.
        self.exchanges.clear();
        Action::Announce { to: self.present(), loss }
    }

    fn fail_exchange(&mut self, tag: String, reason: String) -> Action {
        let parts = self.exchanges.remove(&tag).unwrap_or_default();
        let gave = parts.iter().enumerate().filter(|(_, part)| part.is_some());
        let to =
            gave.map(|(rank, _)| rank).filter(|&rank| self.seats[rank].presence == Presence::Here).collect();
        Action::FailExchange { to, tag, reason }
    }

    /// Who still has to join before the next table.
    fn missing(&self) -> Vec<usize> {
        let next = self.tables + 1;
        let is_here = |seat: &Seat| seat.presence == Presence::Here && seat.round == next;
        let absent = self.seats.iter().enumerate().filter(|(_, seat)| !is_here(seat));
        absent.map(|(rank, _)| rank).collect()
    }

    fn present(&self) -> Vec<usize> {
        let here = self.seats.iter().enumerate().filter(|(_, s)| s.presence == Presence::Here);
        here.map(|(rank, _)| rank).collect()
    }

    /// A rank that said goodbye and whose process is gone, so that it will never join again.
    fn ended(&self) -> Option<(usize, String)> {
        self.seats.iter().enumerate().find_map(|(rank, seat)| match &seat.presence {
            Presence::Ended { reason } => Some((rank, reason.clone())),
            _ => None,
        })
    }

    fn has_left_round(&self, rank: usize) -> bool {
        let seat = &self.seats[rank];
        matches!(seat.presence, Presence::Left | Presence::Ended { .. })
            || (seat.presence == Presence::Here && seat.round > self.tables)
    }

    fn goodbye_of(&self, rank: usize) -> String {
        let host = &self.seats[rank].host;
        format!("rank {rank} on {host} has left the job (it called shutdown() or ended)")
    }

    fn loss_of(&self, rank: usize, reason: String) -> Loss {
        Loss { rank: Some(rank), host: self.seats[rank].host.clone(), reason }
    }
}

#[cfg(test)]
mod tests;
