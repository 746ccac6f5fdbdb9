//! The leader: turns what everybody asked for into the log.
//!
//! It counts hosts the way a relay counts members. What is complete is checked, waits for its group, and goes into
//! batches; each batch, failure and other decision is one entry of the log, which everybody applies in order, the
//! leader itself included. The leader also chooses the slots of the cache, numbers process sets, and gives those that work on
//! devices their turns.

use std::collections::HashSet;
use std::sync::Arc;

use super::cache::Slots;
use super::check::{self, Census};
use super::fusion::{self, Ready, Unit};
use super::groups::{Groups, Outcome};
use super::ledger::{Ledger, TallyId};
use super::messages::{self, Down, Entry, Run, Up, Variant};
use super::parts::Parts;
use super::request::{GroupTag, Kind};
use super::seat::Seat;
use super::sets::Sets;
use super::stall::Stalls;
use super::{Decision, Negotiator};

/// What only the leader knows.
#[derive(Debug)]
pub(super) struct Leader {
    pub(super) hosts: Ledger,
    /// Complete, to be decided at the next occasion.
    ready: Vec<TallyId>,
    groups: Groups,
    slots: Slots,
    /// Whether people have been told that the cache is too small.
    eviction_noted: bool,
    sets: Sets,
    /// Turns of other process sets that were asked for, in the order in which they came.
    turns: Vec<(u32, u64)>,
    /// Positions that have joined.
    pub(super) joined: Parts,
    /// How many have joined on each host.
    joined_on: Vec<usize>,
    last_joined: u32,
    all_joined: bool,
    pub(super) stalls: Stalls,
}

impl Leader {
    /// Whether there is something to decide.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.turns.is_empty() || self.all_joined
    }

    pub(super) fn new(seat: &Seat, cache_capacity: usize) -> Leader {
        Leader {
            hosts: Ledger::new(seat.all_hosts()),
            ready: Vec::new(),
            groups: Groups::default(),
            slots: Slots::new(cache_capacity),
            eviction_noted: false,
            sets: Sets::new(&seat.members),
            turns: Vec::new(),
            joined: Parts::new(seat.members.len()),
            joined_on: vec![0; seat.hosts.len()],
            last_joined: 0,
            all_joined: false,
            stalls: Stalls::default(),
        }
    }
}

/// What a leader's method says when called on another node, which only a garbled message can cause.
const NOT_LEADER: &str = "it came to one who is not the leader";

impl Negotiator {
    /// A message about a host, from its relay.
    pub(super) fn relay_says(&mut self, host: usize, message: Up) -> Result<(), &'static str> {
        let Some(leader) = &mut self.leader else { return Err(NOT_LEADER) };
        let members = self.seat.members.len();
        let is_of_host = |runs: &[Run]| {
            let positions = Run::all_below(runs, members);
            positions.is_some_and(|positions| positions.iter().all(|&at| self.seat.host_of(at) == host))
        };
        match message {
            Up::Seen(version) => leader.hosts.see(host, version, self.cache.version()),
            Up::Hits { whole, partial } => {
                for (runs, partial) in [(whole, false), (partial, true)] {
                    for run in runs {
                        let slots = run
                            .below(self.cache.capacity())
                            .ok_or("it names a slot past the end of the cache")?;
                        for slot in slots {
                            self.host_hit(host, slot, partial)?;
                        }
                    }
                }
                Ok(())
            }
            Up::Held(held) => {
                if !held.variants.iter().all(|variant| is_of_host(&variant.holders)) {
                    return Err("it speaks for others");
                }
                leader.ready.extend(leader.hosts.held(&self.cache, host, held)?);
                Ok(())
            }
            Up::Joined(position) => {
                let position = Some(position as usize).filter(|&position| is_of_host(&Run::of([position])));
                self.host_member_joined(host, position.ok_or("it speaks for others")?)
            }
            Up::Presence(presence) if is_of_host(&presence.holders) => {
                leader.stalls.note(presence, members);
                Ok(())
            }
            Up::Counted(inquiry) => {
                leader.stalls.counted(inquiry, host);
                Ok(())
            }
            Up::Answer { inquiry, position, text } if is_of_host(&[Run::one(position)]) => {
                leader.stalls.answered(inquiry, position as usize, text);
                Ok(())
            }
            Up::Turn { set, number } => {
                let asker =
                    leader.sets.leader_of(set).ok_or("it is about a process set that does not exist")?;
                let position = self.seat.members.binary_search(&asker);
                if !position.is_ok_and(|position| self.seat.host_of(position) == host) {
                    return Err("it asks for the turn of a process set that others lead");
                }
                leader.sets.take_turn(set, number)?;
                leader.turns.push((set, number));
                Ok(())
            }
            _ => Err("it speaks for others"),
        }
    }

    /// A whole host asks for what a slot remembers.
    pub(super) fn host_hit(&mut self, host: usize, slot: u32, partial: bool) -> Result<(), &'static str> {
        let Some(leader) = &mut self.leader else { return Err(NOT_LEADER) };
        if host == self.seat.host() {
            // The leader's own host speaks in terms of the newest version.
            leader.hosts.see(host, self.cache.version(), self.cache.version())?;
        }
        leader.ready.extend(leader.hosts.hit(&self.cache, host, slot, partial)?);
        Ok(())
    }

    fn host_member_joined(&mut self, host: usize, position: usize) -> Result<(), &'static str> {
        let Some(leader) = &mut self.leader else { return Err(NOT_LEADER) };
        if !leader.joined.insert(position) {
            return Err("it joins twice");
        }
        leader.last_joined = position as u32;
        leader.all_joined = leader.joined.count() == self.seat.members.len();
        leader.joined_on[host] += 1;
        if leader.joined_on[host] == self.seat.hosts[host].len() {
            leader.ready.extend(leader.hosts.leave(host)?);
        }
        Ok(())
    }

    /// Decides what is ready, and writes it into the log.
    pub(super) fn decide(&mut self) {
        let Some(leader) = &mut self.leader else { return };
        let ready = std::mem::take(&mut leader.ready);
        for (set, number) in std::mem::take(&mut leader.turns) {
            self.log(&Down::Turn { set, number });
        }
        if !ready.is_empty() {
            let mut units = Vec::with_capacity(ready.len());
            for complete in ready {
                units.extend(self.settle(complete));
            }
            let threshold = self.settings.fusion_threshold as u64;
            for batch in fusion::fuse(units, threshold, self.settings.disable_group_fusion) {
                self.log_batch(&batch);
            }
        }
        let Some(leader) = &self.leader else { return };
        if leader.all_joined {
            self.log(&Down::AllJoined { last: leader.last_joined });
        }
    }

    /// Checks a complete tally. Returns what may run now.
    fn settle(&mut self, complete: TallyId) -> Option<Unit> {
        let leader = self.leader.as_mut()?;
        let partial = leader.hosts.is_partial(complete);
        let remembered = leader.hosts.pure_hit(complete).and_then(|slot| self.cache.facts(slot));
        let facts = match remembered {
            // What is remembered was checked before, and everybody asks for it.
            Some(facts) if !partial => Arc::clone(facts),
            _ => {
                let variants = leader.hosts.variants(&self.cache, complete);
                let joined: Vec<usize> = leader.joined.iter().collect();
                let census = Census { members: &self.seat.members, joined: &joined };
                if let Err(text) = check::check(&variants, partial, &census) {
                    self.fail(complete, &variants, text);
                    return None;
                }
                Arc::clone(&variants.first()?.facts)
            }
        };
        let order = leader.hosts.tally(complete).order;
        let slot = leader.hosts.tally(complete).slot;
        // Only this rank's own rows are known here; they stand for everybody's.
        let bytes = match facts.kind {
            Kind::Allgather => {
                let rows = self.own.get(&facts.name, slot).map_or(0, |request| request.rows);
                facts.bytes(rows).saturating_mul(self.seat.members.len() as u64)
            }
            _ => facts.bytes(0),
        };
        let item = Ready { tally: complete, facts, bytes, order };
        let Some(tag) = item.facts.group.clone() else { return Some(Unit::of(vec![item])) };
        match leader.groups.complete(&tag, item) {
            Outcome::Wait => None,
            Outcome::Go(items) => Some(Unit::of(items)),
            Outcome::Fail(item, text) => {
                self.log_failure(&[item], text);
                None
            }
        }
    }

    /// A name failed, and with it the groups that it was said to belong to.
    fn fail(&mut self, complete: TallyId, variants: &[Variant], text: String) {
        let Some(leader) = &mut self.leader else { return };
        let facts = Arc::clone(&variants[0].facts);
        let mut failed = vec![Ready { tally: complete, facts, bytes: 0, order: 0 }];
        let tags: HashSet<&GroupTag> =
            variants.iter().filter_map(|variant| variant.facts.group.as_ref()).collect();
        for tag in tags {
            failed.extend(leader.groups.fail(tag, &text));
        }
        self.log_failure(&failed, text);
    }

    fn log_failure(&mut self, failed: &[Ready], text: String) {
        let Some(leader) = &mut self.leader else { return };
        for item in failed {
            leader.hosts.close(item.tally);
            leader.stalls.decided(&item.facts.name);
            if let Some(slot) = self.cache.slot_of(&item.facts.name) {
                leader.slots.release(slot);
            }
        }
        let names = failed.iter().map(|item| Arc::clone(&item.facts.name)).collect();
        self.log(&Down::Fail { names, text });
    }

    fn log_batch(&mut self, batch: &[Ready]) {
        let Some(leader) = &mut self.leader else { return };
        if let [item] = batch
            && !item.facts.kind.is_cached()
        {
            return self.log_special(item);
        }
        let mut entries = Vec::new();
        for item in batch {
            let facts = &item.facts;
            let known = leader.hosts.tally(item.tally).slot;
            leader.hosts.close(item.tally);
            leader.stalls.decided(&facts.name);
            if let Some(slot) = known {
                leader.slots.touch(slot);
                if self.cache.facts(slot) == Some(facts) {
                    let grown = match entries.last_mut() {
                        Some(Entry::Cached(run)) => run.grow(slot),
                        _ => false,
                    };
                    if !grown {
                        entries.push(Entry::Cached(Run::one(slot)));
                    }
                    continue;
                }
            }
            let slot = known.or_else(|| {
                if !facts.comes_back() {
                    return None;
                }
                let given = leader.slots.give(|slot| leader.hosts.is_slot_open(slot))?;
                if given.evicts && !leader.eviction_noted {
                    leader.eviction_noted = true;
                    self.decisions.push_back(Decision::Note(crowded(self.cache.capacity())));
                }
                Some(given.slot)
            });
            entries.push(Entry::New { facts: Arc::clone(facts), slot });
        }
        self.log(&Down::Batch(entries));
    }

    /// Barriers and process sets, which are neither cached nor fused.
    fn log_special(&mut self, item: &Ready) {
        let Some(leader) = &mut self.leader else { return };
        let facts = &item.facts;
        let name = Arc::clone(&facts.name);
        let decision = match facts.kind {
            Kind::AddSet => leader.sets.add(&facts.ranks).map(|id| {
                let ranks = facts.ranks.clone();
                Down::AddSet { name, ranks, id }
            }),
            Kind::RemoveSet => leader.sets.remove(&facts.ranks).map(|id| Down::RemoveSet { name, id }),
            _ => Ok(Down::Done { name }),
        };
        match decision {
            Ok(decision) => {
                leader.hosts.close(item.tally);
                leader.stalls.decided(&facts.name);
                self.log(&decision);
            }
            Err(why) => self.log_failure(std::slice::from_ref(item), format!("{}: {why}", facts.kind)),
        }
    }

    /// Appends to the log: everybody gets it, and this node acts on it at once.
    pub(super) fn log(&mut self, decision: &Down) {
        if !self.seat.children.is_empty() {
            messages::write(self.down.frame(), decision);
        }
        let applied = self.apply(decision);
        debug_assert_eq!(applied, Ok(()), "the leader can act on its own decisions");
    }

    /// Everybody is back from joining.
    pub(super) fn reset_joined(&mut self) {
        if let Some(host) = &mut self.host {
            host.return_all();
        }
        if let Some(leader) = &mut self.leader {
            leader.hosts.return_all();
            leader.joined.clear();
            leader.joined_on.fill(0);
            leader.all_joined = false;
        }
    }
}

fn crowded(capacity: usize) -> String {
    format!(
        "the response cache is full: its {capacity} entries are fewer than the tensor names in use, so names are \
         negotiated anew again and again. Set HOROVOD_CACHE_CAPACITY to a larger number, or to 0 to do without it, \
         or give tensors names that come back"
    )
}
