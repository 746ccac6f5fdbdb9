//! The memory that carries control messages between the members of a set on one host.
//!
//! One mapping a host and set, made by the relay. Every member has a desk in it, with its mark and the counters of
//! its two lanes, up to the relay and down from it; behind the desks lie the rings of the lanes:
//!
//! ```text
//! desk of every member | up ring, down ring of member 0 | up ring, down ring of member 1 | …
//! ```
//!
//! Member 0 is the relay, whose own lanes stay unused: pages that nobody touches cost nothing. Offsets are computed
//! from constants, never from what the memory says.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::mark::Mark;
use super::ring::{Counters, RING};
use crate::error::Result;
use crate::memory::{Mapping, PAGE};

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

/// One ring: bytes between a member (its position on the host) and the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) member: usize,
    pub(super) direction: Direction,
}

/// A cache line that its member writes and all who write to the member read.
#[repr(C, align(64))]
struct MarkLine(Mark);

#[repr(C)]
struct Desk {
    ring_me: MarkLine,
    up: Counters,
    down: Counters,
}

/// See the module's text.
pub(super) struct Desks {
    memory: Mapping,
    members: usize,
}

fn rings_at(members: usize) -> usize {
    (members * size_of::<Desk>()).next_multiple_of(PAGE)
}

fn length(members: usize) -> usize {
    rings_at(members) + members * 2 * RING
}

impl Desks {
    /// Makes the memory for a host with `members` members.
    pub(super) fn create(members: usize) -> Result<Desks> {
        Ok(Desks { memory: Mapping::create(length(members))?, members })
    }

    /// Takes over what the relay made.
    pub(super) fn adopt(fd: OwnedFd, members: usize) -> Result<Desks> {
        Ok(Desks { memory: Mapping::adopt(fd, length(members))?, members })
    }

    /// For handing to the other members.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    fn desk(&self, member: usize) -> &Desk {
        assert!(member < self.members);
        // SAFETY: desks start at the mapping's start, which is aligned to a page, and zeroed memory is valid for the
        // atomics they consist of.
        unsafe { &*self.memory.at(0).cast::<Desk>().add(member) }
    }

    /// Whether a member wants to be rung when something was written to it.
    pub(super) fn ring_me(&self, member: usize) -> &Mark {
        &self.desk(member).ring_me.0
    }

    /// The counters of a lane.
    pub(super) fn counters(&self, lane: Lane) -> &Counters {
        let desk = self.desk(lane.member);
        match lane.direction {
            Direction::Up => &desk.up,
            Direction::Down => &desk.down,
        }
    }

    /// The [`RING`] bytes of a lane.
    pub(super) fn ring(&self, lane: Lane) -> *mut u8 {
        assert!(lane.member < self.members);
        let index = 2 * lane.member + usize::from(lane.direction == Direction::Down);
        self.memory.at(rings_at(self.members) + index * RING)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn desks_and_rings_do_not_overlap_and_lines_are_not_shared() {
        const MEMBERS: usize = 9;
        let desks = Desks::create(MEMBERS).expect("shared memory");
        let base = desks.memory.at(0) as usize;
        let mut places = Vec::new();
        for member in 0..MEMBERS {
            places.push((desks.ring_me(member) as *const Mark as usize, 64));
            for direction in [Direction::Up, Direction::Down] {
                let lane = Lane { member, direction };
                places.push((desks.counters(lane) as *const Counters as usize, 128));
                places.push((desks.ring(lane) as usize, RING));
            }
        }
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(places.iter().all(|(start, _)| start % 64 == 0));
        assert!(places[0].0 >= base && places[places.len() - 1].0 + RING <= base + length(MEMBERS));
    }
}
