//! Two ranks that share a core while another one idles.
//!
//! Ranks that wait for each other in turns look to the kernel like one task that never leaves its core, so it may keep both
//! on one core for seconds, each waiting for the other to be scheduled away. A rank that waits for a peer on its own core
//! steps aside: it forbids itself that core for a moment, which makes the kernel move it at once, and then restores
//! the set of cores it was given.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Moves are rare: two ranks that cannot be apart (other work on the machine) must not chase each other.
const REST: Duration = Duration::from_millis(2);

/// The core that the calling thread runs on, as it is published (0 means nobody has said).
pub(super) fn here() -> u32 {
    sched_getcpu() as u32 + 1
}

/// When this rank last stepped aside.
#[derive(Default)]
pub(super) struct StepAside(Cell<Option<Instant>>);

impl StepAside {
    /// Leaves the core the calling thread runs on, unless it did so just now or has no other.
    pub(super) fn now(&self) {
        self.at(Instant::now());
    }

    fn at(&self, now: Instant) {
        if self.0.get().is_some_and(|last| now - last < REST) {
            return;
        }
        self.0.set(Some(now));
        let Ok(given) = sched_getaffinity(None) else { return };
        let mut others = given;
        others.unset(sched_getcpu());
        if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
            // Cannot fail where the narrower set was taken; and if it did, the rank would run on.
            let _ = sched_setaffinity(None, &given);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stepping_aside_keeps_the_cores_that_were_given() {
        let before = sched_getaffinity(None).expect("affinity");
        StepAside::default().now();
        assert_eq!(sched_getaffinity(None).expect("affinity"), before);
    }

    #[test]
    fn it_rests_between_moves() {
        let (aside, first) = (StepAside::default(), Instant::now());
        aside.at(first);
        aside.at(first + REST / 2);
        assert_eq!(aside.0.get(), Some(first));
        aside.at(first + REST);
        assert_eq!(aside.0.get(), Some(first + REST));
    }
}
