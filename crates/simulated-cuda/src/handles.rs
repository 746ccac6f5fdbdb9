//! What is given out by number: streams, events, modules, functions and physical memory.
//!
//! Numbers are never used twice, so a handle that was freed is found out for ever after.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::status::{INVALID_HANDLE, Result};

/// A handle as it looks outside: an address that nobody follows.
pub(crate) type Handle = usize;

/// Takes a lock. That a test failed while it held one says nothing about what it guards.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All live things of one kind.
pub(crate) struct Table<T> {
    /// Keeps handles of different kinds apart.
    kind: usize,
    entries: Mutex<Entries<T>>,
}

struct Entries<T> {
    given: usize,
    live: BTreeMap<Handle, Arc<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: usize) -> Table<T> {
        Table { kind, entries: Mutex::new(Entries { given: 0, live: BTreeMap::new() }) }
    }

    /// Gives a thing a handle.
    pub(crate) fn add(&self, thing: Arc<T>) -> Handle {
        let mut entries = lock(&self.entries);
        entries.given += 1;
        let handle = (self.kind << 40) | (entries.given << 4);
        entries.live.insert(handle, thing);
        handle
    }

    /// What a handle stands for.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>> {
        lock(&self.entries).live.get(&handle).cloned().ok_or(INVALID_HANDLE)
    }

    /// Ends a handle.
    pub(crate) fn take(&self, handle: Handle) -> Result<Arc<T>> {
        lock(&self.entries).live.remove(&handle).ok_or(INVALID_HANDLE)
    }

    /// Ends all handles whose things are not to be kept.
    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        lock(&self.entries).live.retain(|_, thing| keep(thing));
    }

    /// How many handles are live.
    pub(crate) fn count(&self) -> usize {
        lock(&self.entries).live.len()
    }

    /// A sum over all that is live.
    pub(crate) fn sum(&self, of: impl Fn(&T) -> usize) -> usize {
        lock(&self.entries).live.values().map(|thing| of(thing)).sum()
    }
}
