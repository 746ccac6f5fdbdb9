//! Words in shared host memory by which the streams of several processes wait for each other.
//!
//! Each member has a line of them, and only its stream writes it. They only grow, counted on modulo 2^32, so none is ever reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ronde_collective::{Alarm, Pages};
use ronde_cuda::{Device, Registered, Stream};

/// Bytes of shared memory for each member.
pub(super) const LINE: usize = 64;
/// How far words are moved on when a rank is lost: beyond every round that a stream waits for.
const RELEASE: u32 = 1 << 30;
/// Words are moved on so often, at this distance. A process that is being killed may lose its sockets before its GPU stops: what
/// that still writes would put a word back for good.
const RELEASES: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// What a word counts rounds of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// The member's slot is filled.
    Filled = 0,
    /// Its part of the fold is in its slot.
    Folded = 1,
    /// It has read the others' slots.
    Taken = 2,
}

/// See the module's text.
pub(super) struct Flags {
    // Dropped before the pages that it makes known to the GPU.
    registered: Registered,
    pages: Pages,
    members: usize,
    /// The last round that this member's stream was told to count.
    round: AtomicU32,
}

impl Flags {
    /// In memory that so many members have mapped, a line for each.
    pub(super) fn new(pages: Pages, members: usize, device: &Arc<Device>) -> ronde_cuda::Result<Flags> {
        // SAFETY: the pages live as long as what is registered.
        let registered = unsafe { Registered::new(device, pages.as_ptr(), pages.len()) }?;
        Ok(Flags { registered, pages, members, round: AtomicU32::new(0) })
    }

    fn address(&self, member: usize, stage: Stage) -> u64 {
        self.registered.address() + (member * LINE + stage as usize * size_of::<u32>()) as u64
    }

    /// Counts a round of this member when the stream comes here.
    pub(super) fn write(
        &self,
        stream: &Stream,
        member: usize,
        stage: Stage,
        round: u32,
    ) -> ronde_cuda::Result<()> {
        self.round.store(round, Ordering::Relaxed);
        // SAFETY: a word of the pages, which outlive the stream's work: whoever drops them waits for the stream first.
        unsafe { stream.write(self.address(member, stage), round) }
    }

    /// Has the stream wait here for a round of another member.
    pub(super) fn wait(
        &self,
        stream: &Stream,
        member: usize,
        stage: Stage,
        round: u32,
    ) -> ronde_cuda::Result<()> {
        // SAFETY: as above.
        unsafe { stream.wait_for(self.address(member, stage), round) }
    }
}

impl Flags {
    /// Lets go all streams that wait for anything, of all members. Everybody may do so, as often as one likes.
    pub(super) fn release(&self) {
        let count = self.members * LINE / size_of::<u32>();
        // SAFETY: inside the pages, aligned; both processes and GPUs use the words as whole words only.
        let words = unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast::<AtomicU32>(), count) };
        release(words, self.round.load(Ordering::Relaxed));
    }
}

/// Moves words on from about this round. Members are never more than a round apart, so it does not matter who comes last; adding
/// to the words would not do, since several do it, and half of all numbers count as behind.
fn release(words: &[AtomicU32], round: u32) {
    for word in words {
        word.store(round.wrapping_add(RELEASE), Ordering::SeqCst);
    }
}

/// Lets go all streams when a rank is lost.
pub(super) struct Releaser(pub(super) Arc<Flags>);

impl Alarm for Releaser {
    fn ring(&self) {
        self.0.release();
        let flags = Arc::downgrade(&self.0);
        // Without a thread it was done once.
        let _ = std::thread::Builder::new().name("ronde-release".into()).spawn(move || {
            for _ in 0..RELEASES {
                std::thread::sleep(PAUSE);
                let Some(flags) = flags.upgrade() else { return };
                flags.release();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_ranks_let_go_nobody_waits_for_a_round_any_more() {
        for begin in [0, 7, u32::MAX - 1, RELEASE, 3 * RELEASE] {
            for survivors in 1..=16 {
                let words = [begin.wrapping_sub(2), begin.wrapping_sub(1), begin].map(AtomicU32::new);
                for survivor in 0..survivors {
                    release(&words, begin.wrapping_add(survivor % 2));
                }
                for awaited in [begin.wrapping_sub(2), begin, begin.wrapping_add(1)] {
                    // As a GPU compares them.
                    let is_reached = |word: &AtomicU32| {
                        word.load(Ordering::Relaxed).wrapping_sub(awaited).cast_signed() >= 0
                    };
                    assert!(words.iter().all(is_reached), "{survivors} in round {begin}, {awaited} awaited");
                }
            }
        }
    }
}
