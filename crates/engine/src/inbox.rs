//! What was submitted to a process set and not taken up yet, and the names in flight.
//!
//! A submitter never waits: it leaves its operation here, and whoever holds the set's core takes it up.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::hasher::QuickState;
use crate::operation::Operation;

#[derive(Default)]
struct State {
    queue: Vec<Arc<Operation>>,
    /// Names in flight on this rank.
    names: HashSet<Arc<str>, QuickState>,
    /// Why nothing more is taken.
    closed: Option<Error>,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
}

impl Inbox {
    /// Leaves an operation here, after `note` if it is taken. Returns how many there are now.
    pub(crate) fn put(
        &self,
        operation: Arc<Operation>,
        note: impl FnOnce(&Operation),
    ) -> Result<usize, Error> {
        let mut state = self.state();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        for (index, name) in operation.names().iter().enumerate() {
            if !state.names.insert(name.clone()) {
                for taken_back in &operation.names()[..index] {
                    state.names.remove(taken_back);
                }
                return Err(Error::Invalid(format!(
                    "an operation named \"{name}\" is in flight on this rank already; wait for it, or give \
                     this one another name"
                )));
            }
        }
        note(&operation);
        state.queue.push(operation);
        Ok(state.queue.len())
    }

    /// Everything that was left here since the last call, in order.
    pub(crate) fn take(&self) -> Vec<Arc<Operation>> {
        std::mem::take(&mut self.state().queue)
    }

    /// These names are no longer in flight. To be said before anybody sees the end of their operations, since the names may be
    /// used again then.
    pub(crate) fn forget<'a>(&self, names: impl IntoIterator<Item = &'a Arc<str>>) {
        let mut state = self.state();
        for name in names {
            state.names.remove(name);
        }
    }

    /// Takes nothing more from now on, because of `error`; the first one stays. Returns what was still here.
    pub(crate) fn close(&self, error: &Error) -> Vec<Arc<Operation>> {
        let mut state = self.state();
        state.closed.get_or_insert_with(|| error.clone());
        state.names.clear();
        std::mem::take(&mut state.queue)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves at worst a name that cannot be used again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
