//! The memory that the ranks of one group on one host share.
//!
//! One sealed mapping ([`crate::memory`]) a group, made by the lowest member and handed to the others over
//! their unix sockets. Each member owns one page-aligned region that only it writes (so the kernel places its pages on the NUMA node of the rank that first touches them):
//!
//! ```text
//! header | control block of every member | region of member 0 | region of member 1 | …
//! region: small[2] | input slots[DEPTH] | result slots[DEPTH]
//! ```
//!
//! All `unsafe` about the mapping is here; offsets are computed from constants, never from what the
//! memory itself says, since a peer could have written anything.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

use super::signal::Signal;
use crate::error::Result;
use crate::memory::{Mapping, PAGE};

/// Slots that a stream of chunks rotates through: one being filled, one folded, one taken.
pub(crate) const DEPTH: usize = 3;
/// Largest chunk, and so the size of every slot.
pub(crate) const SLOT: usize = 1 << 20;
/// Largest payload of a one-phase operation.
pub(crate) const SMALL: usize = 128 << 10;
/// Payload that travels in the cache line of the signal itself.
pub(crate) const INLINE: usize = 28;

const REGION: usize = 2 * SMALL + 2 * DEPTH * SLOT;

/// One cache line: the signal of one-phase operations with room for a tiny payload of either parity.
#[repr(C, align(64))]
pub(crate) struct SmallLine {
    pub(crate) signal: Signal,
    inline: [[u8; INLINE]; 2],
}

/// One cache line with one signal, so that ranks never contend for a line they do not wait on.
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) Signal);

/// What one member tells the others about its progress.
#[repr(C, align(256))]
pub(crate) struct Control {
    /// One-phase operations entered.
    pub(crate) small: SmallLine,
    /// Chunks whose input slot is complete.
    pub(crate) filled: Line,
    /// Chunks whose input slots this member has finished reading and whose result slot is complete.
    pub(crate) folded: Line,
    /// Chunks whose result slots this member has finished reading.
    pub(crate) taken: Line,
    /// The core it last waited on.
    core: AtomicU32,
}

impl Control {
    /// Writes only what changed: the line is read by waiting peers.
    pub(crate) fn publish_core(&self, core: u32) {
        if self.core() != core {
            self.core.store(core, Relaxed);
        }
    }

    pub(crate) fn core(&self) -> u32 {
        self.core.load(Relaxed)
    }
}

#[repr(C)]
struct Header {
    /// Rank (plus one) of the first member known to be lost.
    cause: AtomicU32,
}

/// The mapping; see the module's text.
pub(crate) struct Segment {
    memory: Mapping,
    members: usize,
}

fn length(members: usize) -> usize {
    regions_at(members) + members * REGION
}

fn regions_at(members: usize) -> usize {
    PAGE + (members * size_of::<Control>()).next_multiple_of(PAGE)
}

impl Segment {
    /// Makes a new segment for `members` ranks.
    pub(crate) fn create(members: usize) -> Result<Segment> {
        Ok(Segment { memory: Mapping::create(length(members))?, members })
    }

    /// Takes over a segment received from a peer.
    pub(crate) fn adopt(fd: OwnedFd, members: usize) -> Result<Segment> {
        Ok(Segment { memory: Mapping::adopt(fd, length(members))?, members })
    }

    /// For handing to the other members.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.memory.at(offset)
    }

    fn header(&self) -> &Header {
        // SAFETY: the first page holds the header, zeroed memory is valid for it, and it is only atomics.
        unsafe { &*self.at(0).cast::<Header>() }
    }

    /// The control block of a member.
    pub(crate) fn control(&self, member: usize) -> &Control {
        assert!(member < self.members);
        // SAFETY: control blocks start at the second page, aligned; signals are atomics, and the inline
        // payload is only reached through raw pointers.
        unsafe { &*self.at(PAGE).cast::<Control>().add(member) }
    }

    /// Where member's payload of a one-phase operation of this parity lies.
    pub(crate) fn small(&self, member: usize, parity: usize, len: usize) -> *mut u8 {
        if len <= INLINE {
            let control: *const Control = self.control(member);
            // SAFETY: projecting to a field of the control block inside the mapping; the bytes are
            // shared memory that Rust never holds a reference to.
            return unsafe { (&raw const (*control).small.inline[parity]).cast_mut().cast() };
        }
        self.at(self.region(member) + parity * SMALL)
    }

    /// Member's input slot for a chunk.
    pub(crate) fn input(&self, member: usize, chunk: u32) -> *mut u8 {
        self.at(self.region(member) + 2 * SMALL + (chunk as usize % DEPTH) * SLOT)
    }

    /// Member's result slot for a chunk.
    pub(crate) fn result(&self, member: usize, chunk: u32) -> *mut u8 {
        self.at(self.region(member) + 2 * SMALL + (DEPTH + chunk as usize % DEPTH) * SLOT)
    }

    fn region(&self, member: usize) -> usize {
        assert!(member < self.members);
        regions_at(self.members) + member * REGION
    }

    /// Wakes everybody with the news that `rank` is lost. The first rank named stays.
    pub(crate) fn poison(&self, rank: usize) {
        let named = u32::try_from(rank + 1).unwrap_or(u32::MAX);
        let _ = self.header().cause.compare_exchange(0, named, SeqCst, SeqCst);
        for member in 0..self.members {
            let control = self.control(member);
            for signal in [&control.small.signal, &control.filled.0, &control.folded.0, &control.taken.0] {
                signal.poison();
            }
        }
    }

    /// The rank named by [`Segment::poison`].
    pub(crate) fn cause(&self) -> Option<usize> {
        (self.header().cause.load(SeqCst) as usize).checked_sub(1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn regions_do_not_overlap_and_slots_are_page_aligned() {
        let segment = Segment::create(3).expect("shared memory");
        let mut starts = Vec::new();
        for member in 0..3 {
            for parity in 0..2 {
                starts.push((segment.small(member, parity, SMALL) as usize, SMALL));
            }
            for chunk in 0..DEPTH as u32 {
                starts.push((segment.input(member, chunk) as usize, SLOT));
                starts.push((segment.result(member, chunk) as usize, SLOT));
            }
        }
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(starts.iter().all(|(start, _)| start % PAGE == 0));
    }

    #[test]
    fn a_segment_for_another_number_of_members_is_refused() {
        let segment = Segment::create(2).expect("shared memory");
        let copy = || segment.fd().try_clone_to_owned().expect("duplicate");
        assert!(Segment::adopt(copy(), 2).is_ok());
        assert!(matches!(Segment::adopt(copy(), 3), Err(Error::Invalid(_))));
    }

    #[test]
    fn the_first_rank_named_in_poison_stays_named() {
        let segment = Segment::create(2).expect("shared memory");
        assert_eq!(segment.cause(), None);
        segment.poison(7);
        segment.poison(3);
        assert_eq!(segment.cause(), Some(7));
    }
}
