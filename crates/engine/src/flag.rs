//! One wait for one event inside this process: an operation is finished.
//!
//! Raising costs one atomic swap unless somebody sleeps, and looking costs one load, so that a caller may spin on it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{Flags, Timespec, wait, wake};

const DOWN: u32 = 0;
const AWAITED: u32 = 1;
const RAISED: u32 = 2;

/// Raised once and never lowered.
#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicU32);

impl Flag {
    /// Everything written before is visible to whoever sees the flag raised.
    pub(crate) fn raise(&self) {
        if self.0.swap(RAISED, Ordering::AcqRel) == AWAITED {
            // Waking fails only for a bad address, which a live reference is not.
            let _ = wake(&self.0, Flags::PRIVATE, u32::MAX >> 1);
        }
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire) == RAISED
    }

    /// Sleeps until the flag is raised or the time is over, or shorter: callers look again.
    pub(crate) fn sleep(&self, limit: Duration) {
        let seen = self.0.compare_exchange(DOWN, AWAITED, Ordering::AcqRel, Ordering::Acquire);
        if seen == Err(RAISED) {
            return;
        }
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        // Every outcome (woken, raised before sleeping, signal, time) means the same: look again.
        let _ = wait(&self.0, Flags::PRIVATE, AWAITED, Some(&limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_are_woken_and_late_ones_do_not_sleep() {
        let flag = Flag::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !flag.is_raised() {
                        flag.sleep(Duration::from_secs(60));
                    }
                });
            }
            flag.raise();
        });
        flag.sleep(Duration::from_secs(60));
        assert!(flag.is_raised());
    }
}
