//! How far apart, in terms of caches, the ranks of a host are.
//!
//! A slot is written again and again after peers have read it, so its lines must be called back from their caches. Between cores
//! that share a last-level cache that costs little. Between chiplets or sockets it makes writing several times slower
//! than memory; then it pays to write slots past the caches, and peers read them from memory. Which of the two holds is
//! found out while working, because it cannot be asked reliably (virtual machines hide it) and because threads move: now and
//! then a *probe chunk* is written the plain way by everybody, and its copies into the own slot and out of the peers' slots
//! are timed. Both move as many bytes between private and shared memory, so whatever else slows memory down slows both; only
//! distance makes the first several times slower than the second.

use std::cell::Cell;

/// Every so many chunks one is a probe.
const EVERY: u32 = 64;
/// Peers are far if the copy in takes more than so many times the copy out. Measured on two cores of one machine, whose hypervisor
/// moves them: together 1.5 times, apart 7 times.
const FAR: u128 = 3;
/// Shorter copies tell too little.
const LEAST_BYTES: usize = 32 << 10;

/// A timed copy.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Copied {
    pub(super) bytes: usize,
    pub(super) nanoseconds: u128,
}

/// What this rank has found out about writing to slots that its peers read.
#[derive(Default)]
pub(super) struct Distance {
    far: Cell<bool>,
    /// Whether the last probe said otherwise: one alone may have been disturbed.
    doubted: Cell<bool>,
    /// The copy in of the probe under way.
    copied_in: Cell<Copied>,
}

impl Distance {
    /// Whether a chunk is written the plain way and timed.
    pub(super) fn is_probe(chunk: u32) -> bool {
        chunk.is_multiple_of(EVERY)
    }

    /// Takes in the first copy of a probe chunk.
    pub(super) fn copied_in(&self, copied: Copied) {
        self.copied_in.set(copied);
    }

    /// Takes in the second one. Two probes in a row change the verdict.
    pub(super) fn copied_out(&self, out: Copied) {
        let into = self.copied_in.take();
        if into.bytes < LEAST_BYTES || out.bytes < LEAST_BYTES {
            return;
        }
        let far = into.nanoseconds * out.bytes as u128 > FAR * out.nanoseconds * into.bytes as u128;
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

    fn probe(distance: &Distance, bytes: usize, nanoseconds: u128) {
        distance.copied_in(Copied { bytes, nanoseconds });
        distance.copied_out(Copied { bytes, nanoseconds: 15_000 });
    }

    #[test]
    fn two_slow_probes_in_a_row_mean_far_and_two_fast_ones_near_again() {
        let (fast, slow) = (22_000, 106_000);
        let distance = Distance::default();
        for (took, far) in
            [(slow, false), (fast, false), (slow, false), (slow, true), (fast, true), (fast, false)]
        {
            probe(&distance, 256 << 10, took);
            assert_eq!(distance.is_far(), far, "after {took} ns");
        }
    }

    #[test]
    fn memory_that_is_slow_in_both_directions_is_not_far() {
        let distance = Distance::default();
        for _ in 0..4 {
            distance.copied_in(Copied { bytes: 256 << 10, nanoseconds: 900_000 });
            distance.copied_out(Copied { bytes: 256 << 10, nanoseconds: 800_000 });
        }
        assert!(!distance.is_far());
    }

    #[test]
    fn short_copies_are_not_believed() {
        let distance = Distance::default();
        probe(&distance, 100, 1_000_000);
        probe(&distance, 100, 1_000_000);
        assert!(!distance.is_far());
    }
}
