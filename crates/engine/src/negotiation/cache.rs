//! What a name meant the last time, so that it need not be said again.
//!
//! Every node applies the same log in the same order, so every node has the same [`Cache`]: slot to facts. A member
//! that asks for the same again says the slot's number instead.
//!
//! The leader may give a slot to another name while a hit on the old one is on its way up. Each change makes a new
//! *version*, senders say which version their slot numbers are from, and nodes with children keep what slots held
//! before until no child can mean it any more. So a hit is never lost or misread, and nobody has to ask twice.
//!
//! Which slot is given next is the leader's business alone ([`Slots`]): a free one, else the one used least recently.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::request::Facts;

/// The facts that all nodes remember.
#[derive(Debug)]
pub(super) struct Cache {
    capacity: usize,
    slots: Vec<Option<Line>>,
    names: HashMap<Arc<str>, u32>,
    version: u64,
    past: VecDeque<Past>,
    /// Length of the past at which it is worth finding out what can be forgotten.
    prune_at: usize,
    /// Whether this node has children, whose slot numbers may be of an older version.
    keeps_past: bool,
}

#[derive(Debug)]
struct Line {
    facts: Arc<Facts>,
    /// The version that began when the slot got this.
    since: u64,
}

/// What a slot held until a version began.
#[derive(Debug)]
struct Past {
    until: u64,
    slot: u32,
    facts: Arc<Facts>,
}

/// What a slot number from a child stands for.
#[derive(Debug, PartialEq)]
pub(super) enum Meaning {
    /// What the slot holds now.
    Current,
    /// What it held when the child said so.
    Former(Arc<Facts>),
}

const PRUNE_FIRST: usize = 64;

impl Cache {
    pub(super) fn new(capacity: usize, keeps_past: bool) -> Cache {
        Cache {
            capacity,
            slots: Vec::new(),
            names: HashMap::new(),
            version: 0,
            past: VecDeque::new(),
            prune_at: PRUNE_FIRST,
            keeps_past,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn slot_of(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    pub(super) fn facts(&self, slot: u32) -> Option<&Arc<Facts>> {
        Some(&self.slots.get(slot as usize)?.as_ref()?.facts)
    }

    /// What a child that has seen a version means by a slot.
    pub(super) fn meaning(&self, slot: u32, seen: u64) -> Result<Meaning, &'static str> {
        if let Some(Some(line)) = self.slots.get(slot as usize)
            && line.since <= seen
        {
            return Ok(Meaning::Current);
        }
        let later = self.past.partition_point(|past| past.until <= seen);
        let past = self.past.iter().skip(later).find(|past| past.slot == slot);
        past.map(|past| Meaning::Former(Arc::clone(&past.facts))).ok_or("it names an empty slot")
    }

    /// Gives a slot to a name, and says what the slot held before. A name keeps its slot while it has one.
    pub(super) fn assign(
        &mut self,
        slot: u32,
        facts: Arc<Facts>,
    ) -> Result<Option<Arc<Facts>>, &'static str> {
        if slot as usize >= self.capacity {
            return Err("it names a slot past the end of the cache");
        }
        if self.slot_of(&facts.name).is_some_and(|other| other != slot) {
            return Err("it gives a second slot to a name");
        }
        let former = self.vacate(slot);
        if self.slots.len() <= slot as usize {
            self.slots.resize_with(slot as usize + 1, || None);
        }
        self.names.insert(Arc::clone(&facts.name), slot);
        self.slots[slot as usize] = Some(Line { facts, since: self.version });
        Ok(former)
    }

    /// Forgets what a slot holds, says what that was, and begins a new version.
    pub(super) fn vacate(&mut self, slot: u32) -> Option<Arc<Facts>> {
        self.version += 1;
        let line = self.slots.get_mut(slot as usize)?.take()?;
        self.names.remove(&line.facts.name);
        if self.keeps_past {
            self.past.push_back(Past { until: self.version, slot, facts: Arc::clone(&line.facts) });
        }
        Some(line.facts)
    }

    /// Whether so much of the past has piled up that [`Cache::forget`] should be told what can go.
    pub(super) fn is_crowded(&self) -> bool {
        self.past.len() >= self.prune_at
    }

    /// Forgets what slots held before a version that every child has seen.
    pub(super) fn forget(&mut self, seen_by_all: u64) {
        let old = self.past.partition_point(|past| past.until <= seen_by_all);
        self.past.drain(..old);
        // Looking at all children is worth it once per doubling.
        self.prune_at = PRUNE_FIRST.max(2 * self.past.len());
    }
}

const NONE: u32 = u32::MAX;

/// The leader's view of slots: free ones, and used ones in the order of their last use.
#[derive(Debug)]
pub(super) struct Slots {
    capacity: usize,
    free: Vec<u32>,
    /// For each slot given so far its neighbours in the order of use; both [`NONE`] for a free one.
    links: Vec<Link>,
    newest: u32,
    oldest: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

/// A slot for a new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) slot: u32,
    /// Whether another name had to go.
    pub(super) evicts: bool,
}

impl Slots {
    pub(super) fn new(capacity: usize) -> Slots {
        Slots { capacity, free: Vec::new(), links: Vec::new(), newest: NONE, oldest: NONE }
    }

    /// The slot for a new name, none if all are busy.
    pub(super) fn give(&mut self, is_busy: impl Fn(u32) -> bool) -> Option<Given> {
        if let Some(slot) = self.free.pop() {
            self.put_first(slot);
            return Some(Given { slot, evicts: false });
        }
        if self.links.len() < self.capacity {
            let slot = self.links.len() as u32;
            self.links.push(Link { newer: NONE, older: NONE });
            self.put_first(slot);
            return Some(Given { slot, evicts: false });
        }
        let mut slot = self.oldest;
        while slot != NONE && is_busy(slot) {
            slot = self.links[slot as usize].newer;
        }
        (slot != NONE).then(|| {
            self.touch(slot);
            Given { slot, evicts: true }
        })
    }

    /// Notes a use.
    pub(super) fn touch(&mut self, slot: u32) {
        if self.newest != slot {
            self.unlink(slot);
            self.put_first(slot);
        }
    }

    /// Takes a slot back.
    pub(super) fn release(&mut self, slot: u32) {
        self.unlink(slot);
        self.free.push(slot);
    }

    fn put_first(&mut self, slot: u32) {
        self.links[slot as usize] = Link { newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.links[newest as usize].newer = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let Link { newer, older } = self.links[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use ronde_collective::types::DType;

    use super::super::request::{Kind, Request};
    use super::*;

    fn facts(name: &str) -> Arc<Facts> {
        Arc::new(Facts::of(Request::new(Kind::Allreduce, name, DType::F32, [1])))
    }

    #[test]
    fn a_hit_means_what_its_sender_saw() {
        let mut cache = Cache::new(2, true);
        for name in ["a", "b", "c"] {
            cache.assign(0, facts(name)).expect("slot 0 exists");
        }
        assert_eq!(cache.meaning(0, 3), Ok(Meaning::Current));
        assert_eq!(cache.meaning(0, 2), Ok(Meaning::Former(facts("b"))));
        assert_eq!(cache.meaning(0, 1), Ok(Meaning::Former(facts("a"))));
        assert!(cache.meaning(1, 3).is_err());
        cache.vacate(0);
        assert_eq!(cache.meaning(0, 3), Ok(Meaning::Former(facts("c"))));
        assert!(cache.meaning(0, 4).is_err());
        cache.forget(3);
        assert_eq!(cache.past.len(), 1);
        assert_eq!(cache.meaning(0, 3), Ok(Meaning::Former(facts("c"))));
    }

    #[test]
    fn the_past_is_looked_through_each_time_it_has_doubled() {
        let mut cache = Cache::new(1, true);
        // Each name but the first sends another one into the past.
        let name = |count: usize, cache: &mut Cache| {
            for number in 0..count {
                assert!(!cache.is_crowded(), "{number} of {count}");
                cache.assign(0, facts(&format!("{count}.{number}"))).expect("slot 0 exists");
            }
        };
        name(PRUNE_FIRST + 1, &mut cache);
        assert!(cache.is_crowded());
        cache.forget(0);
        assert_eq!(cache.past.len(), PRUNE_FIRST, "one rank has seen nothing yet");
        name(PRUNE_FIRST, &mut cache);
        assert!(cache.is_crowded());
        cache.forget(cache.version());
        assert!(cache.past.is_empty() && !cache.is_crowded());
    }

    #[test]
    fn slots_out_of_place_are_refused() {
        let mut cache = Cache::new(2, false);
        assert!(cache.assign(2, facts("a")).is_err());
        cache.assign(0, facts("a")).expect("slot 0 exists");
        assert!(cache.assign(1, facts("a")).is_err());
        assert_eq!(cache.assign(0, facts("b")).expect("slot 0 exists"), Some(facts("a")));
        assert_eq!((cache.slot_of("a"), cache.slot_of("b")), (None, Some(0)));
    }

    #[test]
    fn the_least_recently_used_slot_that_is_not_busy_goes_first() {
        let mut slots = Slots::new(3);
        for slot in 0..3 {
            assert_eq!(slots.give(|_| false), Some(Given { slot, evicts: false }));
        }
        slots.touch(0);
        assert_eq!(slots.give(|slot| slot == 1), Some(Given { slot: 2, evicts: true }));
        assert_eq!(slots.give(|_| false), Some(Given { slot: 1, evicts: true }));
        slots.release(0);
        assert_eq!(slots.give(|_| true), Some(Given { slot: 0, evicts: false }));
        assert_eq!(slots.give(|_| true), None);
        assert_eq!(Slots::new(0).give(|_| false), None);
    }
}
