//! Ranks that share memory: how they signal, and the two ways data moves between them.
//!
//! * [`Host::round`]: one phase, for small payloads. Everybody publishes its bytes and reads everybody's.
//! * [`Host::stream`]: chunks of bounded size flow through rotating slots in three stages (fill, fold,
//!   take); what the stages do is a [`Work`], so allreduce, reduce-scatter, allgather, broadcast and
//!   all-to-all are each a small type in [`crate::algorithm`].
//!
//! Neither needs a barrier at its end: counters only grow and slots rotate, so the next operation may
//! start while a slow peer still reads the last one.

mod cores;
mod distance;
mod segment;
mod signal;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cores::StepAside;
use distance::{Copied, Distance};
#[cfg(test)]
pub(crate) use segment::SLOT;
use segment::{Control, DEPTH};
pub(crate) use segment::{SMALL, Segment};
use signal::{Look, Patience, Signal};

use crate::algorithm::table;
use crate::error::{Error, Result};
use crate::fabric::Shared;

/// What the three stages of a stream do with chunk `chunk` of the operation. All pointers are to slots of
/// [`segment::SLOT`] bytes; a stage must touch no more than it agreed on with its peers.
pub(crate) trait Work {
    /// Whether members publish input slots (else `fill` is never called and `fold` gets no inputs).
    const FILLS: bool;
    /// Whether members read each other's result slots.
    const TAKES: bool;
    /// Copies this member's share of the chunk into its input slot, past the caches if `stream`. Returns how many bytes.
    fn fill(&mut self, chunk: usize, slot: *mut u8, stream: bool) -> usize;
    /// Reads all members' input slots, writes this member's result slot (past the caches if `stream`) and
    /// private output.
    fn fold(&mut self, chunk: usize, inputs: &[*const u8], result: *mut u8, stream: bool);
    /// Copies from all members' result slots into the private output. Returns how many bytes.
    fn take(&mut self, chunk: usize, results: &[*const u8]) -> usize;
}

/// This rank's end of the memory it shares with the other members of a group on its host.
pub(crate) struct Host {
    segment: Arc<Segment>,
    me: usize,
    members: usize,
    spin: Duration,
    longest_spin: Duration,
    aside: StepAside,
    distance: Distance,
    shared: Arc<Shared>,
    /// One-phase operations so far.
    rounds: u32,
    /// Chunks of all streams so far.
    chunks: u32,
    /// Room for the slot addresses of one stage, kept so that chunks cost no allocation.
    pointers: Vec<*const u8>,
}

// SAFETY: the pointers are scratch, rewritten from the segment (which is Send) before each use.
unsafe impl Send for Host {}

impl Patience for Shared {
    fn still(&self) -> Result<()> {
        self.check()
    }
}

impl Host {
    pub(crate) fn new(
        segment: Arc<Segment>,
        me: usize,
        members: usize,
        spin: Duration,
        shared: Arc<Shared>,
    ) -> Host {
        Host {
            segment,
            me,
            members,
            spin,
            longest_spin: spin,
            aside: StepAside::default(),
            distance: Distance::default(),
            shared,
            rounds: 0,
            chunks: 0,
            pointers: Vec::with_capacity(members),
        }
    }

    /// Whether to look for a peer's step as long as that can pay, or only briefly, before sleeping.
    pub(crate) fn set_eager(&mut self, eager: bool) {
        self.spin = if eager { self.longest_spin } else { self.longest_spin.min(table::BACKGROUND_SPIN) };
    }

    pub(crate) fn members(&self) -> usize {
        self.members
    }

    /// Publishes at most [`SMALL`] bytes and hands `read` everybody's in member order, once all have entered. `len` is the
    /// same for all and bounds what each writes; `fill` writes this member's, or leaves it out. The own entry is the
    /// shared copy as well.
    pub(crate) fn round(
        &mut self,
        len: usize,
        fill: impl FnOnce(*mut u8),
        read: impl FnOnce(&[*const u8]),
    ) -> Result<()> {
        assert!(len <= SMALL);
        let parity = (self.rounds % 2) as usize;
        self.rounds = self.rounds.wrapping_add(1);
        // The slot is ours and holds `SMALL` bytes (`INLINE` for tiny ones). Nobody reads it any more: the last round of
        // this parity was read by all before they entered the one between.
        fill(self.segment.small(self.me, parity, len));
        self.segment.control(self.me).small.signal.post(1);
        self.pointers.clear();
        for member in 0..self.members {
            if member != self.me {
                self.wait(member, |control| &control.small.signal, self.rounds)?;
            }
            self.pointers.push(self.segment.small(member, parity, len));
        }
        read(&self.pointers);
        Ok(())
    }

    /// Runs `chunks` chunks of `work` through the slots. All members must call it with equal `chunks`.
    ///
    /// Order of stages: fill(k+1), fold(k), take(k-1), so that a peer that is one stage behind holds
    /// nobody up. With `DEPTH` slots each stage waits only for what it really overwrites or reads.
    /// `meanwhile` is called once a chunk, for whoever has a network to keep busy.
    pub(crate) fn stream<W: Work>(
        &mut self,
        chunks: usize,
        work: &mut W,
        meanwhile: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        if chunks == 0 {
            return Ok(());
        }
        let first = self.chunks;
        let count = u32::try_from(chunks).map_err(|_| Error::Invalid("tensor too large".into()))?;
        self.chunks = first.wrapping_add(count);
        let segment = self.segment.clone();
        let own = segment.control(self.me);
        // Stages that this work does not have are passed for all its chunks at once, so that counters stay level.
        if !W::FILLS {
            own.filled.0.post(count);
        }
        if !W::TAKES {
            own.taken.0.post(count);
        }
        if W::FILLS {
            self.fill_chunk(work, first, 0)?;
        }
        for k in 0..count {
            if W::FILLS && k + 1 < count {
                self.fill_chunk(work, first, k + 1)?;
            }
            self.fold_chunk(work, first, k)?;
            meanwhile()?;
            if W::TAKES && k > 0 {
                self.take_chunk(work, first, k - 1)?;
            }
        }
        if W::TAKES {
            self.take_chunk(work, first, count - 1)?;
        }
        Ok(())
    }

    fn fill_chunk<W: Work>(&mut self, work: &mut W, first: u32, k: u32) -> Result<()> {
        let number = first.wrapping_add(k);
        // The slot's last content, chunk number - DEPTH, must have been folded by everybody.
        self.wait_all(|control| &control.folded.0, number.wrapping_sub(DEPTH as u32 - 1))?;
        let probe = Distance::is_probe(number).then(Instant::now);
        let bytes = work.fill(k as usize, self.segment.input(self.me, number), self.streams(number));
        if let Some(start) = probe {
            self.distance.copied_in(Copied { bytes, nanoseconds: start.elapsed().as_nanos() });
        }
        self.segment.control(self.me).filled.0.post(1);
        Ok(())
    }

    fn fold_chunk<W: Work>(&mut self, work: &mut W, first: u32, k: u32) -> Result<()> {
        let number = first.wrapping_add(k);
        if W::FILLS {
            self.wait_all(|control| &control.filled.0, number.wrapping_add(1))?;
        }
        if W::TAKES {
            self.wait_all(|control| &control.taken.0, number.wrapping_sub(DEPTH as u32 - 1))?;
        }
        self.pointers.clear();
        self.pointers.extend((0..self.members).map(|member| self.segment.input(member, number).cast_const()));
        let stream = self.streams(number);
        work.fold(k as usize, &self.pointers, self.segment.result(self.me, number), stream);
        self.segment.control(self.me).folded.0.post(1);
        Ok(())
    }

    fn take_chunk<W: Work>(&mut self, work: &mut W, first: u32, k: u32) -> Result<()> {
        let number = first.wrapping_add(k);
        self.wait_all(|control| &control.folded.0, number.wrapping_add(1))?;
        self.pointers.clear();
        self.pointers
            .extend((0..self.members).map(|member| self.segment.result(member, number).cast_const()));
        let probe = Distance::is_probe(number).then(Instant::now);
        let bytes = work.take(k as usize, &self.pointers);
        if let Some(start) = probe {
            self.distance.copied_out(Copied { bytes, nanoseconds: start.elapsed().as_nanos() });
        }
        self.segment.control(self.me).taken.0.post(1);
        Ok(())
    }

    /// Whether this rank writes a chunk past the caches.
    fn streams(&self, number: u32) -> bool {
        self.distance.is_far() && !Distance::is_probe(number)
    }

    fn wait_all(&self, which: impl Fn(&Control) -> &Signal + Copy, target: u32) -> Result<()> {
        for member in 0..self.members {
            if member != self.me {
                self.wait(member, which, target)?;
            }
        }
        Ok(())
    }

    /// Looks, spins for a bounded time, then sleeps.
    #[inline]
    fn wait(&self, member: usize, which: impl Fn(&Control) -> &Signal, target: u32) -> Result<()> {
        let signal = which(self.segment.control(member));
        match signal.look(target) {
            Look::Reached => Ok(()),
            Look::Poisoned => Err(self.lost()),
            Look::Pending => self.wait_longer(member, signal, target),
        }
    }

    #[cold]
    fn wait_longer(&self, member: usize, signal: &Signal, target: u32) -> Result<()> {
        /// Looks between two glances at the clock: about a microsecond.
        const LOOKS: u32 = 64;
        let start = Instant::now();
        while start.elapsed() < self.spin {
            for _ in 0..LOOKS {
                match signal.look(target) {
                    Look::Reached => return Ok(()),
                    Look::Poisoned => return Err(self.lost()),
                    Look::Pending => std::hint::spin_loop(),
                }
            }
            self.part_from(member);
        }
        match signal.sleep(target, &*self.shared)? {
            Look::Poisoned => Err(self.lost()),
            _ => Ok(()),
        }
    }

    /// Says on which core this rank runs; if the peer it waits for is on the same one, lets it run or moves away.
    fn part_from(&self, peer: usize) {
        let here = cores::here();
        self.segment.control(self.me).publish_core(here);
        if self.segment.control(peer).core() == here {
            if self.me > peer {
                self.aside.now();
            }
            std::thread::yield_now();
        }
    }

    /// Why the segment was poisoned, by the best knowledge at hand.
    fn lost(&self) -> Error {
        let named = self.segment.cause().unwrap_or(self.shared.rank);
        self.shared.verdict(named, "it gave up in the middle of an operation")
    }

    /// Fails if somebody on this host will not go on.
    pub(crate) fn check(&self) -> Result<()> {
        self.segment.cause().map_or(Ok(()), |_| Err(self.lost()))
    }

    /// Tells the others on this host that this rank will not go on.
    pub(crate) fn abandon(&self, rank: usize) {
        self.segment.poison(rank);
    }
}
