//! The way down: every node acts on the log, entry by entry, and so comes to the same cache and the same decisions.

use std::sync::Arc;

use super::messages::{Down, Entry};
use super::request::{Device, Facts, Ticket};
use super::{Batch, Decision, Item, Negotiator};

impl Negotiator {
    /// Acts on one entry of the log.
    pub(super) fn apply(&mut self, entry: &Down) -> Result<(), &'static str> {
        match entry {
            Down::Batch(entries) => return self.apply_batch(entries),
            Down::Fail { names, text } => self.apply_failure(names, text),
            Down::Done { name } => {
                let ticket =
                    self.own.take(name, None).ok_or("it ends a barrier that this rank has not reached")?;
                self.decisions.push_back(Decision::Done { ticket });
            }
            Down::AllJoined { last } => {
                let ticket =
                    self.own.joined.take().ok_or("it says that all have joined, and this rank has not")?;
                let last =
                    *self.seat.members.get(*last as usize).ok_or("it names a position past the last")?;
                self.reset_joined();
                self.decisions.push_back(Decision::Joined { ticket, last });
            }
            Down::AddSet { name, ranks, id } => {
                let ticket = self.own.take(name, None).ok_or("it adds a process set nobody asked for")?;
                let ranks = ranks.iter().map(|&rank| rank as usize).collect();
                self.decisions.push_back(Decision::AddSet { ticket, ranks, id: *id });
            }
            Down::RemoveSet { name, id } => {
                let ticket =
                    self.own.take(name, None).ok_or("it removes a process set nobody asked to remove")?;
                self.decisions.push_back(Decision::RemoveSet { ticket, id: *id });
            }
            Down::Inquire { inquiry, names } => self.inquired(*inquiry, names),
            Down::End { text } => {
                self.ended = true;
                self.decisions.push_back(Decision::ShutDown { text: text.clone() });
            }
            &Down::Turn { set, number } => self.decisions.push_back(Decision::Turn { set, number }),
        }
        Ok(())
    }

    fn apply_batch(&mut self, entries: &[Entry]) -> Result<(), &'static str> {
        let mut items = Vec::with_capacity(entries.len());
        let mut first: Option<Arc<Facts>> = None;
        for entry in entries {
            match entry {
                Entry::Cached(run) => {
                    let slots = run
                        .below(self.cache.capacity())
                        .ok_or("it names a slot past the end of the cache")?;
                    for slot in slots {
                        let facts = Arc::clone(self.cache.facts(slot).ok_or("it names an empty slot")?);
                        let ticket = self.own.take(&facts.name, Some(slot));
                        items.push(self.item(&facts, ticket)?);
                        first.get_or_insert(facts);
                    }
                }
                Entry::New { facts, slot } => {
                    let ticket = self.own.take(&facts.name, self.cache.slot_of(&facts.name));
                    items.push(self.item(facts, ticket)?);
                    first.get_or_insert_with(|| Arc::clone(facts));
                    if let Some(slot) = *slot {
                        let former = self.cache.assign(slot, Arc::clone(facts))?;
                        self.slot_changed(slot, former.as_ref());
                        if let Some(host) = &mut self.host {
                            host.slot_given(slot, &facts.name);
                        }
                    }
                }
            }
        }
        let facts = first.ok_or("it runs an empty batch")?;
        let (prescale, postscale) = facts.factors();
        self.device_batches += u64::from(facts.device != Device::Host);
        self.decisions.push_back(Decision::Run(Batch {
            kind: facts.kind,
            dtype: facts.dtype,
            op: facts.op,
            prescale,
            postscale,
            root: facts.root,
            device: facts.device,
            items,
        }));
        Ok(())
    }

    fn item(&self, facts: &Facts, ticket: Option<Ticket>) -> Result<Item, &'static str> {
        if ticket.is_none() && self.own.joined.is_none() {
            return Err("it runs what this rank has not asked for");
        }
        Ok(Item { ticket, name: Arc::clone(&facts.name), shape: Arc::clone(&facts.shape) })
    }

    fn apply_failure(&mut self, names: &[Arc<str>], text: &str) {
        let mut tickets = Vec::new();
        for name in names {
            let slot = self.cache.slot_of(name);
            tickets.extend(self.own.take(name, slot));
            if let Some(slot) = slot {
                let former = self.cache.vacate(slot);
                self.slot_changed(slot, former.as_ref());
            }
        }
        // Who has joined had no part in it.
        if !tickets.is_empty() {
            self.decisions.push_back(Decision::Fail { tickets, text: text.to_owned() });
        }
    }

    /// What was in flight under a slot that now means something else goes on under its name.
    fn slot_changed(&mut self, slot: u32, former: Option<&Arc<Facts>>) {
        let Some(former) = former else { return };
        self.own.slot_changed(slot, former);
        if let Some(host) = &mut self.host {
            host.slot_changed(slot, former);
        }
        if let Some(leader) = &mut self.leader {
            leader.hosts.slot_changed(slot, former);
        }
    }

    /// Forgets what slots held before every child's last word.
    pub(super) fn forget_past(&mut self) {
        let newest = self.cache.version();
        let mut seen = newest;
        if let Some(host) = &self.host {
            seen = seen.min(host.seen_by_others(self.seat.place()));
        }
        if let Some(leader) = &self.leader {
            seen = seen.min(leader.hosts.seen_by_others(self.seat.host()));
        }
        self.cache.forget(seen);
    }
}
