//! What this rank itself has in flight.
//!
//! A request that hits the cache is remembered by its slot, so the steady state looks up one name and nothing else;
//! the others by name. If the slot goes to another name meanwhile, the request moves to the names.

use std::collections::HashMap;
use std::sync::Arc;

use super::request::{Facts, Kind, Ticket};

/// A request of this rank that is not decided yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) ticket: Ticket,
    pub(super) kind: Kind,
    /// The tensor's first extent, which cached facts do not have where rows may differ.
    pub(super) rows: u64,
}

/// This rank's requests.
#[derive(Debug, Default)]
pub(super) struct Own {
    by_slot: Vec<Option<InFlight>>,
    by_name: HashMap<Arc<str>, InFlight>,
    count: usize,
    /// Set from the moment this rank joins until all have.
    pub(super) joined: Option<Ticket>,
}

impl Own {
    pub(super) fn is_idle(&self) -> bool {
        self.count == 0 && self.joined.is_none()
    }

    /// Whether a name, which may be cached in this slot, is in flight.
    pub(super) fn holds(&self, name: &str, slot: Option<u32>) -> bool {
        let in_slot = slot.and_then(|slot| self.by_slot.get(slot as usize)).is_some_and(Option::is_some);
        in_slot || (!self.by_name.is_empty() && self.by_name.contains_key(name))
    }

    /// The request for a name, which may be cached in this slot.
    pub(super) fn get(&self, name: &str, slot: Option<u32>) -> Option<&InFlight> {
        let in_slot = slot.and_then(|slot| self.by_slot.get(slot as usize)?.as_ref());
        in_slot.or_else(|| self.by_name.get(name))
    }

    pub(super) fn put_slot(&mut self, slot: u32, request: InFlight) {
        let at = slot as usize;
        if self.by_slot.len() <= at {
            self.by_slot.resize(at + 1, None);
        }
        self.by_slot[at] = Some(request);
        self.count += 1;
    }

    pub(super) fn put_name(&mut self, name: Arc<str>, request: InFlight) {
        self.by_name.insert(name, request);
        self.count += 1;
    }

    /// Takes the request for a name that is cached in this slot, or not at all.
    pub(super) fn take(&mut self, name: &str, slot: Option<u32>) -> Option<Ticket> {
        let in_slot = slot.and_then(|slot| self.by_slot.get_mut(slot as usize)?.take());
        let request = match in_slot {
            None if !self.by_name.is_empty() => self.by_name.remove(name),
            found => found,
        }?;
        self.count -= 1;
        Some(request.ticket)
    }

    /// The slot goes to another name.
    pub(super) fn slot_changed(&mut self, slot: u32, former: &Arc<Facts>) {
        if let Some(request) = self.by_slot.get_mut(slot as usize).and_then(Option::take) {
            self.by_name.insert(Arc::clone(&former.name), request);
        }
    }

    /// Every request that is in flight by slot, and by name.
    pub(super) fn all(&self) -> impl Iterator<Item = (Where<'_>, &InFlight)> {
        let slots = self.by_slot.iter().enumerate();
        let by_slot = slots.filter_map(|(slot, request)| Some((Where::Slot(slot as u32), request.as_ref()?)));
        by_slot.chain(self.by_name.iter().map(|(name, request)| (Where::Name(name), request)))
    }

    /// Forgets everything, and says what there was.
    pub(super) fn drain(&mut self) -> Vec<Ticket> {
        let mut tickets: Vec<Ticket> = self.all().map(|(_, request)| request.ticket).collect();
        tickets.extend(self.joined);
        tickets.sort_unstable();
        *self = Own::default();
        tickets
    }
}

/// How a request in flight is known.
#[derive(Debug)]
pub(super) enum Where<'a> {
    /// By the slot that its name is cached in.
    Slot(u32),
    /// By its name.
    Name(&'a Arc<str>),
}
