//! One order for what process sets start on devices.
//!
//! Work on a device waits there for the other ranks' part in it and lets nothing past, so ranks that start batches of
//! overlapping sets in different orders would wait for each other for good. Batches of the set of all ranks have one order,
//! its log. A batch on devices of any other set takes a *turn* in that log:
//!
//! 1. The set's leader decides the batch in the set's own log, and asks the leader of all ranks for a turn.
//! 2. The turn comes down the log of all ranks. At every member that seat lets the set start the batch, and does not go on
//!    with its log before that is done; whoever is no member passes over it.
//!
//! The two seats wait for each other, and neither holds anything meanwhile: a decision that is early stays in the seat's core,
//! which is let go of, and whoever brings what it waits for has the seat look again ([`Seat::nudge`]). Until then the seat
//! takes in nothing new from other ranks, exactly as if the batch were running.
//!
//! That no rank waits for good follows along the log of all ranks. Everything before a turn is carried out on all ranks. What
//! comes before its batch in the set's own log needs none of the set of all ranks, or a turn that came earlier. So all members
//! come to start the batch, and with that to the next entry of the log. A wait that cannot end well ends with the cause:
//! where the set of all ranks is closed its error closes the sets that wait for turns, and a set that is closed holds up
//! nobody.
//!
//! Batches in host memory take no turns and notice nothing of all this; neither do sets of one rank, who waits for nobody.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::common::WORLD;
use crate::error::Error;
use crate::negotiation::{Batch, Decision, Device, Negotiator};
use crate::seat::Seat;

/// The turns of one process set as one of its members knows them. Its batches on devices are counted from 0.
pub(crate) struct Turns {
    /// Whether the set takes turns at all.
    are_taken: bool,
    /// Whether this rank is the one that asks for them.
    are_asked_for: bool,
    asked: AtomicU64,
    come: AtomicU64,
    /// Batches that were started, each after its turn had come.
    started: AtomicU64,
    /// Whether a batch waits for its turn.
    awaited: AtomicBool,
    /// At the seat of all ranks: what it is to ask for, for sets that this rank leads.
    requests: Mutex<Vec<(u32, u64)>>,
    /// Whether there are any, so that whoever brings an operation need not look.
    has_requests: AtomicBool,
}

impl Turns {
    pub(crate) fn new(set: u32, members: &[usize], me: usize) -> Turns {
        let are_taken = set != WORLD && members.len() > 1;
        Turns {
            are_taken,
            are_asked_for: are_taken && members.first() == Some(&me),
            asked: AtomicU64::new(0),
            come: AtomicU64::new(0),
            started: AtomicU64::new(0),
            awaited: AtomicBool::new(false),
            requests: Mutex::default(),
            has_requests: AtomicBool::new(false),
        }
    }

    fn are_for(&self, batch: &Batch) -> bool {
        self.are_taken && batch.device != Device::Host
    }

    /// The turns to ask for now that so many batches were decided.
    fn to_ask(&self, decided: u64) -> Range<u64> {
        if !self.are_asked_for {
            return 0..0;
        }
        let asked = self.asked.load(Ordering::Relaxed);
        if asked != decided {
            self.asked.store(decided, Ordering::Relaxed);
        }
        asked..decided
    }

    fn request(&self, set: u32, numbers: Range<u64>) {
        self.requests().extend(numbers.map(|number| (set, number)));
        self.has_requests.store(true, Ordering::SeqCst);
    }

    /// Asks the leader of all ranks for what was requested here. Returns whether that was anything.
    pub(crate) fn pass_on(&self, now: Duration, negotiator: &mut Negotiator) -> Result<bool, Error> {
        if !self.has_requests.load(Ordering::SeqCst) {
            return Ok(false);
        }
        self.has_requests.store(false, Ordering::SeqCst);
        for (set, number) in std::mem::take(&mut *self.requests()) {
            let asked = negotiator.ask_turn(now, set, number);
            asked.map_err(|garbled| Error::ShutDown(garbled.to_string()))?;
        }
        Ok(true)
    }

    fn requests(&self) -> MutexGuard<'_, Vec<(u32, u64)>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the turn of the next batch has come.
    fn has_come(&self) -> bool {
        self.started.load(Ordering::SeqCst) < self.come.load(Ordering::SeqCst)
    }

    /// Whether a batch waits for a turn that has not come.
    fn are_awaited(&self) -> bool {
        self.awaited.load(Ordering::SeqCst) && !self.has_come()
    }

    /// The next batch was started.
    fn start(&self) {
        self.awaited.store(false, Ordering::SeqCst);
        self.started.fetch_add(1, Ordering::SeqCst);
    }

    /// Turn `number` is here, which may be said until its batch was started. Returns whether that is news.
    fn give(&self, number: u64) -> Result<bool, Error> {
        let come = self.come.load(Ordering::SeqCst);
        if !self.are_taken || (number != come && number.checked_add(1) != Some(come)) {
            return Err(Error::ShutDown(format!(
                "turn {number} for work on devices makes no sense after {come} turns; the ranks no longer agree"
            )));
        }
        self.come.store(number + 1, Ordering::SeqCst);
        Ok(number == come)
    }

    fn is_started(&self, number: u64) -> bool {
        self.started.load(Ordering::SeqCst) > number
    }
}

impl Seat {
    /// Asks for the turns of what this rank has decided for the set.
    pub(crate) fn ask_for_turns(&self, decided: u64) {
        let numbers = self.turns.to_ask(decided);
        if !numbers.is_empty()
            && let Ok(world) = self.common.seat(WORLD)
        {
            world.turns.request(self.id, numbers);
            world.speak_up();
        }
    }

    /// Whether a decision has to wait, and with it all that follow: a batch on a device for its turn, and a turn for its batch.
    pub(crate) fn is_early(&self, decision: &Decision) -> Result<bool, Error> {
        match decision {
            Decision::Run(batch) if self.turns.are_for(batch) => self.has_to_wait(),
            &Decision::Turn { set, number } => match self.common.seat(set) {
                Ok(seat) => seat.holds_up(number),
                Err(_) => Ok(false),
            },
            _ => Ok(false),
        }
    }

    /// Whether the turn of the next batch on devices is still to come; the error says why it never will.
    fn has_to_wait(&self) -> Result<bool, Error> {
        if self.turns.has_come() {
            return Ok(false);
        }
        if let Some(error) = self.common.turns_end.get() {
            return Err(error.clone());
        }
        if !self.turns.awaited.swap(true, Ordering::SeqCst) {
            // Somebody may have left long ago, and nobody waited for it.
            self.nudge_world();
        }
        Ok(true)
    }

    /// Turn `number` of this set has come: whether those who wait for its batch have to go on waiting.
    fn holds_up(&self, number: u64) -> Result<bool, Error> {
        if self.turns.give(number)? {
            self.nudge();
        }
        Ok(!self.turns.is_started(number) && !self.is_closed())
    }

    /// A batch was started, or has failed to.
    pub(crate) fn has_started(&self, batch: &Batch) {
        if self.turns.are_for(batch) {
            self.turns.start();
            self.nudge_world();
        }
    }

    /// Nothing more is started here: whoever waits for this set, or for this seat to give a turn, looks again.
    pub(crate) fn end_turns(&self, error: &Error) {
        if self.id == WORLD {
            // The first error is the cause of the others.
            let _ = self.common.turns_end.set(error.clone());
            for seat in self.common.seats().iter().filter(|seat| seat.turns.are_taken) {
                seat.nudge();
            }
        } else if self.turns.are_taken {
            self.turns.awaited.store(false, Ordering::SeqCst);
            self.nudge_world();
        }
    }

    /// Whether this seat, if it is the one of all ranks, has to bring a turn that a set of this rank waits for.
    pub(crate) fn owes_turns(&self) -> bool {
        self.id == WORLD && self.common.seats().iter().any(|seat| seat.turns.are_awaited())
    }

    fn nudge_world(&self) {
        if let Ok(world) = self.common.seat(WORLD) {
            world.nudge();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_may_start_in_its_turn_and_not_before() {
        let turns = Turns::new(1, &[0, 1], 1);
        assert!(!turns.has_come());
        assert!(turns.give(0).expect("the first"));
        assert!(turns.has_come() && !turns.is_started(0));
        assert!(!turns.give(0).expect("said again"), "nothing new");
        turns.start();
        assert!(!turns.has_come() && turns.is_started(0) && !turns.is_started(1));
        assert!(turns.give(2).is_err(), "one was left out");
        assert!(turns.give(u64::MAX).is_err());
        assert!(turns.give(1).expect("the second"));
    }

    #[test]
    fn only_the_leader_asks_and_for_each_turn_once() {
        let (leader, member) = (Turns::new(1, &[2, 5], 2), Turns::new(1, &[2, 5], 5));
        assert_eq!([leader.to_ask(0), leader.to_ask(2), leader.to_ask(2)], [0..0, 0..2, 2..2]);
        assert!(member.to_ask(2).is_empty());
    }

    #[test]
    fn all_ranks_together_and_ranks_alone_take_no_turns() {
        for turns in [Turns::new(WORLD, &[0, 1], 0), Turns::new(1, &[1], 1)] {
            assert!(turns.to_ask(3).is_empty());
            assert!(turns.give(0).is_err());
        }
    }
}
