//! Who has asked for what, as one node of the tree counts it.
//!
//! A relay counts the members of its host, the leader counts hosts; both are *parts* here. A name's [`Tally`] is open
//! from the first part that asks for it until it is closed by whoever keeps the ledger; it is complete once every part
//! has asked or left (joined). Tallies of cached names are found by slot, the others by name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::cache::{Cache, Meaning};
use super::messages::{Held, Run, Variant};
use super::parts::Parts;
use super::request::{Facts, Kind};

/// Number of a tally while it is open.
pub(super) type TallyId = u32;

const NONE: TallyId = TallyId::MAX;

/// Who has asked for one name.
#[derive(Debug)]
pub(super) struct Tally {
    /// Tallies opened earlier have lower numbers.
    pub(super) order: u64,
    /// Since when it is open; none until the clock is looked at.
    pub(super) since: Option<Duration>,
    /// Whether the leader has been told that this waits.
    pub(super) told: bool,
    /// The slot it is found by; else it is found by the name of its first variant.
    pub(super) slot: Option<u32>,
    /// Parts that asked.
    held: Parts,
    /// Those of them that asked for what the slot remembers.
    hits: Parts,
    /// How the others asked.
    variants: Vec<Variant>,
    /// Parts that neither asked nor left.
    left: usize,
    /// A part said that some of its members are missing because they have joined.
    partial: bool,
    open: bool,
}

/// The tallies of one node.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The positions each part stands for.
    parts: Vec<Vec<Run>>,
    /// The version of the cache that each part's slot numbers are from.
    seen: Vec<u64>,
    /// Parts that have joined as a whole.
    gone: Parts,
    tallies: Vec<Tally>,
    closed: Vec<TallyId>,
    by_slot: Vec<TallyId>,
    by_name: HashMap<Arc<str>, TallyId>,
    orders: u64,
    /// Opened since the clock was last looked at.
    unstamped: Vec<TallyId>,
    /// Who asked for what since it was last taken, for a trace; none while nobody wants one.
    heard: Option<Vec<(Arc<str>, usize)>>,
}

type Outcome = Result<Option<TallyId>, &'static str>;

impl Ledger {
    pub(super) fn new(parts: Vec<Vec<Run>>) -> Ledger {
        Ledger {
            seen: vec![0; parts.len()],
            gone: Parts::new(parts.len()),
            parts,
            tallies: Vec::new(),
            closed: Vec::new(),
            by_slot: Vec::new(),
            by_name: HashMap::new(),
            orders: 0,
            unstamped: Vec::new(),
            heard: None,
        }
    }

    /// Whether parts are remembered as they ask, for a trace.
    pub(super) fn listen(&mut self, on: bool) {
        match (on, &self.heard) {
            (true, None) => self.heard = Some(Vec::new()),
            (false, Some(_)) => self.heard = None,
            _ => {}
        }
    }

    /// Names and positions that asked for them since this was last called.
    pub(super) fn take_heard(&mut self) -> Vec<(Arc<str>, usize)> {
        let heard = self.heard.as_mut().map(std::mem::take).unwrap_or_default();
        let positions = |part: usize| Run::all_below(&self.parts[part], usize::MAX).unwrap_or_default();
        heard
            .into_iter()
            .flat_map(|(name, part)| positions(part).into_iter().map(move |at| (name.clone(), at)))
            .collect()
    }

    fn hear(&mut self, name: &Arc<str>, part: usize) {
        if let Some(heard) = &mut self.heard {
            heard.push((Arc::clone(name), part));
        }
    }

    /// A part has applied the log up to this version of the cache.
    pub(super) fn see(&mut self, part: usize, version: u64, newest: u64) -> Result<(), &'static str> {
        if version < self.seen[part] || version > newest {
            return Err("it claims to have seen what was not sent");
        }
        self.seen[part] = version;
        Ok(())
    }

    /// What every part has seen that may still send slot numbers, other than the node's own.
    pub(super) fn seen_by_others(&self, own: usize) -> u64 {
        let staying = (0..self.parts.len()).filter(|&part| part != own && !self.gone.contains(part));
        staying.map(|part| self.seen[part]).min().unwrap_or(u64::MAX)
    }

    /// A part asks for what a slot remembers. Returns the tally if that completes it.
    pub(super) fn hit(&mut self, cache: &Cache, part: usize, slot: u32, partial: bool) -> Outcome {
        match cache.meaning(slot, self.seen[part])? {
            Meaning::Current => {
                let id = match *self.at(slot) {
                    NONE => self.open_slot(slot),
                    id => id,
                };
                self.tallies[id as usize].hits.insert(part);
                if let Some(facts) = cache.facts(slot) {
                    self.hear(&facts.name, part);
                }
                self.count(id, part, partial)
            }
            Meaning::Former(facts) => {
                let holders = self.parts[part].clone();
                self.held(cache, part, Held { variants: vec![Variant { facts, holders }], partial })
            }
        }
    }

    /// A part asks for a name in its own words. Returns the tally if that completes it.
    pub(super) fn held(&mut self, cache: &Cache, part: usize, held: Held) -> Outcome {
        let name = match held.variants.as_slice() {
            [] => return Err("it asks for nothing"),
            [first, others @ ..] if others.iter().all(|other| other.facts.name == first.facts.name) => {
                Arc::clone(&first.facts.name)
            }
            _ => return Err("it mixes names"),
        };
        self.hear(&name, part);
        let id = match self.find(cache, &name) {
            Some(id) => id,
            None => match cache.slot_of(&name) {
                Some(slot) => self.open_slot(slot),
                None => {
                    let id = self.open(None);
                    self.by_name.insert(name, id);
                    id
                }
            },
        };
        for variant in held.variants {
            self.tallies[id as usize].add(variant);
        }
        self.count(id, part, held.partial)
    }

    /// A part has joined and will not ask any more. Returns the tallies that this completes, in their order.
    pub(super) fn leave(&mut self, part: usize) -> Result<Vec<TallyId>, &'static str> {
        if !self.gone.insert(part) {
            return Err("it joins twice");
        }
        let mut complete = Vec::new();
        for (id, tally) in self.tallies.iter_mut().enumerate() {
            if tally.open && !tally.held.contains(part) {
                tally.left -= 1;
                if tally.left == 0 {
                    complete.push(id as TallyId);
                }
            }
        }
        complete.sort_unstable_by_key(|&id| self.tallies[id as usize].order);
        Ok(complete)
    }

    /// All have joined: everybody is back.
    pub(super) fn return_all(&mut self) {
        self.gone.clear();
    }

    /// The cache is about to forget, or has forgotten, what a slot held: hits on it become words of their own.
    pub(super) fn slot_changed(&mut self, slot: u32, former: &Arc<Facts>) {
        let id = match self.by_slot.get_mut(slot as usize) {
            Some(id) if *id != NONE => std::mem::replace(id, NONE),
            _ => return,
        };
        let holders = self.hit_holders(id);
        let tally = &mut self.tallies[id as usize];
        tally.slot = None;
        tally.hits.clear();
        if !holders.is_empty() {
            tally.add(Variant { facts: Arc::clone(former), holders });
        }
        self.by_name.insert(Arc::clone(&former.name), id);
    }

    /// A name has got a slot: from now on its tally is found by that.
    pub(super) fn slot_given(&mut self, slot: u32, name: &str) {
        if let Some(id) = self.by_name.remove(name) {
            *self.at(slot) = id;
            self.tallies[id as usize].slot = Some(slot);
        }
    }

    pub(super) fn find(&self, cache: &Cache, name: &str) -> Option<TallyId> {
        let found = match cache.slot_of(name) {
            Some(slot) => self.by_slot.get(slot as usize).copied(),
            None => self.by_name.get(name).copied(),
        };
        found.filter(|&id| id != NONE)
    }

    pub(super) fn tally(&self, id: TallyId) -> &Tally {
        &self.tallies[id as usize]
    }

    pub(super) fn is_slot_open(&self, slot: u32) -> bool {
        self.by_slot.get(slot as usize).is_some_and(|&id| id != NONE)
    }

    /// Every open tally.
    pub(super) fn open_tallies(&self) -> impl Iterator<Item = TallyId> + '_ {
        (0..self.tallies.len() as TallyId).filter(|&id| self.tallies[id as usize].open)
    }

    pub(super) fn has_open(&self) -> bool {
        self.closed.len() < self.tallies.len()
    }

    /// Name and kind of what a tally counts.
    pub(super) fn subject<'a>(&'a self, cache: &'a Cache, id: TallyId) -> Option<(&'a Arc<str>, Kind)> {
        let tally = self.tally(id);
        let cached = tally.slot.and_then(|slot| cache.facts(slot));
        let facts = cached.or(tally.variants.first().map(|variant| &variant.facts))?;
        Some((&facts.name, facts.kind))
    }

    /// Whether somebody is missing from a complete tally because it has joined.
    pub(super) fn is_partial(&self, id: TallyId) -> bool {
        let tally = self.tally(id);
        tally.partial || tally.held.count() < self.parts.len()
    }

    /// The slot of a tally that consists of nothing but hits.
    pub(super) fn pure_hit(&self, id: TallyId) -> Option<u32> {
        let tally = self.tally(id);
        tally.slot.filter(|_| tally.variants.is_empty())
    }

    /// All ways in which a name was asked for, by the lowest position that did.
    pub(super) fn variants(&self, cache: &Cache, id: TallyId) -> Vec<Variant> {
        let tally = self.tally(id);
        let mut variants = tally.variants.clone();
        let holders = self.hit_holders(id);
        if let (Some(slot), false) = (tally.slot, holders.is_empty())
            && let Some(facts) = cache.facts(slot)
        {
            variants.push(Variant { facts: Arc::clone(facts), holders });
        }
        for variant in &mut variants {
            Run::tidy(&mut variant.holders);
        }
        variants.sort_by_key(|variant| variant.holders.first().map(|run| run.first()));
        variants
    }

    /// The positions that hold a name, as far as this node knows.
    pub(super) fn holders(&self, id: TallyId) -> Vec<Run> {
        self.tally(id).held.iter().flat_map(|part| self.parts[part].iter().copied()).collect()
    }

    /// What was opened since the last call was opened now.
    pub(super) fn stamp(&mut self, now: Duration) {
        for id in self.unstamped.drain(..) {
            self.tallies[id as usize].since.get_or_insert(now);
        }
    }

    pub(super) fn mark_told(&mut self, id: TallyId) {
        self.tallies[id as usize].told = true;
    }

    pub(super) fn close(&mut self, id: TallyId) {
        let tally = &mut self.tallies[id as usize];
        match tally.slot {
            Some(slot) => self.by_slot[slot as usize] = NONE,
            None => {
                if let Some(variant) = tally.variants.first() {
                    self.by_name.remove(&variant.facts.name);
                }
            }
        }
        tally.open = false;
        tally.held.clear();
        tally.hits.clear();
        tally.variants.clear();
        self.closed.push(id);
    }

    fn hit_holders(&self, id: TallyId) -> Vec<Run> {
        self.tally(id).hits.iter().flat_map(|part| self.parts[part].iter().copied()).collect()
    }

    /// The place that says which tally counts a slot.
    fn at(&mut self, slot: u32) -> &mut TallyId {
        let at = slot as usize;
        if self.by_slot.len() <= at {
            self.by_slot.resize(at + 1, NONE);
        }
        &mut self.by_slot[at]
    }

    fn open_slot(&mut self, slot: u32) -> TallyId {
        let id = self.open(Some(slot));
        *self.at(slot) = id;
        id
    }

    fn open(&mut self, slot: Option<u32>) -> TallyId {
        let id = self.closed.pop().unwrap_or_else(|| {
            self.tallies.push(Tally {
                order: 0,
                since: None,
                told: false,
                slot: None,
                held: Parts::new(self.parts.len()),
                hits: Parts::new(self.parts.len()),
                variants: Vec::new(),
                left: 0,
                partial: false,
                open: false,
            });
            self.tallies.len() as TallyId - 1
        });
        let tally = &mut self.tallies[id as usize];
        tally.order = self.orders;
        tally.since = None;
        tally.told = false;
        tally.slot = slot;
        tally.left = self.parts.len() - self.gone.count();
        tally.partial = false;
        tally.open = true;
        self.orders += 1;
        self.unstamped.push(id);
        id
    }

    fn count(&mut self, id: TallyId, part: usize, partial: bool) -> Outcome {
        if self.gone.contains(part) {
            return Err("it asks for something after it has joined");
        }
        let tally = &mut self.tallies[id as usize];
        if !tally.held.insert(part) {
            return Err("it asks twice for the same name");
        }
        tally.partial |= partial;
        tally.left -= 1;
        Ok((tally.left == 0).then_some(id))
    }
}

impl Tally {
    /// Whether everybody has asked or left.
    pub(super) fn is_complete(&self) -> bool {
        self.left == 0
    }

    fn add(&mut self, variant: Variant) {
        match self.variants.iter_mut().find(|known| known.facts == variant.facts) {
            Some(known) => known.holders.extend(variant.holders),
            None => self.variants.push(variant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_others_have_seen_is_the_least_that_one_who_stays_has_seen() {
        let mut ledger = Ledger::new((0..4).map(|part| Run::of([part])).collect());
        for (part, version) in [(0, 1), (1, 7), (2, 5), (3, 3)] {
            ledger.see(part, version, 9).expect("it was sent");
        }
        assert_eq!((ledger.seen_by_others(0), ledger.seen_by_others(3)), (3, 1));
        ledger.leave(3).expect("once");
        assert_eq!(ledger.seen_by_others(0), 5);
        for part in [1, 2] {
            ledger.leave(part).expect("once");
        }
        assert_eq!(ledger.seen_by_others(0), u64::MAX, "no other rank sends slot numbers");
    }

    #[test]
    fn nobody_sees_what_was_not_sent_or_goes_back() {
        let mut ledger = Ledger::new(vec![Run::of([0])]);
        for (version, is_possible) in [(5, true), (5, true), (4, false), (9, true), (10, false)] {
            assert_eq!(ledger.see(0, version, 9).is_ok(), is_possible, "{version}");
        }
    }

    #[test]
    fn whoever_asks_for_nothing_is_told_so() {
        let mut ledger = Ledger::new(vec![Run::of([0])]);
        let nothing = Held { variants: Vec::new(), partial: false };
        assert_eq!(ledger.held(&Cache::new(1, true), 0, nothing), Err("it asks for nothing"));
    }
}
