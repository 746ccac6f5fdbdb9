//! How many operations MXNet has that have not ended, so that a process can wait for them before it leaves the job.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static PENDING: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

fn pending() -> MutexGuard<'static, usize> {
    // A number cannot be left half changed.
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One operation, as long as this exists.
pub(crate) struct Counted(());

impl Counted {
    pub(crate) fn new() -> Counted {
        *pending() += 1;
        Counted(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *pending() -= 1;
        CHANGED.notify_all();
    }
}

/// Waits until no operation is left, or until the time is over, and returns how many are left.
pub(crate) fn drain(timeout: Duration) -> usize {
    let waited = CHANGED.wait_timeout_while(pending(), timeout, |left| *left > 0);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}
