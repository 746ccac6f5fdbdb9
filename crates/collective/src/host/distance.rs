//! How far apart, in terms of caches, the ranks of a host are.
//!
//! A slot is written again and again after peers have read it, so its lines must be called back from their caches. Between cores
//! that share a last-level cache that costs little. Between chiplets or sockets it makes writing several times slower
//! than memory; then it pays to write slots past the caches, and peers read them from memory. Which of the two holds is
//! found out while working, because it cannot be asked reliably (virtual machines hide it) and because threads move: now and
//! then a *probe chunk* is written the plain way, and timed.

use std::cell::Cell;

/// Every so many chunks one is a probe.
const EVERY: u32 = 64;
/// A copy into slots below this many bytes a microsecond means that peers are far. Measured on two cores of one machine, whose
/// hypervisor moves them: together about 10,000, apart 2,400.
const FAR_BELOW: u64 = 3_000;
/// Shorter copies tell too little.
const LEAST_BYTES: usize = 32 << 10;

/// What this rank has found out about writing to slots that its peers read.
#[derive(Default)]
pub(super) struct Distance {
    far: Cell<bool>,
    /// Whether the last probe said otherwise: one alone may have been disturbed.
    doubted: Cell<bool>,
}

impl Distance {
    /// Whether a chunk is written the plain way and timed.
    pub(super) fn is_probe(chunk: u32) -> bool {
        chunk.is_multiple_of(EVERY)
    }

    /// Takes in how long the copy of a probe chunk took. Two in a row change the verdict.
    pub(super) fn learn(&self, bytes: usize, nanoseconds: u128) {
        if bytes < LEAST_BYTES {
            return;
        }
        let far = (bytes as u128 * 1000) < u128::from(FAR_BELOW) * nanoseconds;
        let otherwise = far != self.far.get();
        if otherwise && self.doubted.get() {
            self.far.set(far);
        }
        self.doubted.set(otherwise && !self.doubted.get());
    }

    /// Whether slots are better written past the caches.
    pub(super) fn is_far(&self) -> bool {
        self.far.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 20;
    const FAST: u128 = 70_000;
    const SLOW: u128 = 600_000;

    #[test]
    fn two_slow_probes_in_a_row_mean_far_and_two_fast_ones_near_again() {
        let distance = Distance::default();
        for (took, far) in
            [(SLOW, false), (FAST, false), (SLOW, false), (SLOW, true), (FAST, true), (FAST, false)]
        {
            distance.learn(BYTES, took);
            assert_eq!(distance.is_far(), far, "after {took} ns");
        }
    }

    #[test]
    fn short_copies_are_not_believed() {
        let distance = Distance::default();
        distance.learn(100, SLOW);
        distance.learn(100, SLOW);
        assert!(!distance.is_far());
    }
}
