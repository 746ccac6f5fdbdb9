//! Collectives of several ranks on each of several GPUs: inside a GPU the ranks meet in its memory, between GPUs the first rank of
//! each speaks for it, through NCCL.
//!
//! In each round ranks copy into their slots; the speaker makes one slot of them, its own, and exchanges it with the other speakers, in the same
//! stream; then all take what they want from their speaker's slot. Bytes that are handed around go from one member after the other. What NCCL cannot
//! reduce goes through the host.

use std::sync::Arc;

use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{Group, Reduction};
use ronde_cuda::{Kernel, Mark, Stream};
use ronde_engine::Error;
use ronde_nccl::Library;

use crate::between::{Lane, Watch};
use crate::packing::piece;
use crate::path::{Fold, Handing, Path, Sources};
use crate::peers::Peers;
use crate::spans::Span;
use crate::staged::Staged;

/// See the module's text.
pub(crate) struct Both {
    /// Positions in the set, by GPU.
    gpus: Vec<Vec<usize>>,
    /// The GPU of this rank, in that list.
    mine: usize,
    /// For speakers: their group, and what joins them. Dropped first: the end of a communicator does not wait for ever, and what it
    /// has in the stream is waited for by the others.
    lane: Option<(Group, Lane)>,
    peers: Peers,
    staged: Staged,
    /// Whether the batch under way goes through the host.
    is_staged: bool,
    _watch: Watch,
}

impl Both {
    /// Collective over the set.
    pub(crate) fn new(
        group: &mut Group,
        gpus: Vec<Vec<usize>>,
        stream: &Arc<Stream>,
        library: &'static Library,
    ) -> Result<Both, Error> {
        let me = group.rank();
        let mine = gpus.iter().position(|gpu| gpu.contains(&me)).unwrap_or(0);
        let peers = Peers::new(group.subset(&gpus[mine], 0)?, stream)?;
        let speakers: Vec<usize> = gpus.iter().map(|gpu| gpu[0]).collect();
        // Where a GPU's ranks have failed, its speaker must not be waited for.
        group.barrier()?;
        let lane = if speakers.contains(&me) {
            let mut speakers = group.subset(&speakers, 1)?;
            let lane = Lane::new(&mut speakers, stream, library)?;
            Some((speakers, lane))
        } else {
            None
        };
        let watch = lane.iter().map(|(_, lane)| lane.communicator());
        let watch = Watch::start(watch)?;
        let staged = Staged::new(stream)?;
        Ok(Both { gpus, mine, lane, peers, staged, is_staged: false, _watch: watch })
    }

    /// Makes room for rounds; returns the bytes of one, on which all GPUs agree, though one may have less memory than another.
    fn room(&mut self, group: &mut Group, len: usize) -> Result<usize, Error> {
        let room = self.peers.prepare(len)?;
        if len <= Peers::ALWAYS {
            return Ok(room);
        }
        Ok(group.gather_numbers(&[room])?.into_iter().flatten().min().unwrap_or(room))
    }

    /// The place of the speaker's slot among those of a round: it is the first on its GPU.
    fn spoken(slots: &[u64]) -> u64 {
        slots[0]
    }

    /// Reduces over everybody; this rank gets what its targets cover of the long tensor.
    fn reduce(
        &mut self,
        group: &mut Group,
        sources: Sources<'_>,
        targets: &[Span],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        // Factors and the divisor apply once: the first while slots are folded, the others when results are taken.
        let op = if how.op == ReduceOp::Average { ReduceOp::Sum } else { how.op };
        let inside = Fold::new(&Reduction { op, postscale: 1.0, ..*how }, group.size())?;
        let after = Fold::new(&Reduction { prescale: 1.0, ..*how }, group.size())?;
        let room = self.room(group, len)?;
        for start in (0..len).step_by(room) {
            let bytes = room.min(len - start);
            let slots = self.peers.begin()?;
            self.peers.contribute(sources, how, start, bytes, &slots)?;
            self.peers.publish()?;
            if let Some((_, lane)) = &self.lane {
                let slot = Both::spoken(&slots);
                let whole = [Span { at: start, ..Span::plain(slot, bytes) }];
                self.peers.fold_into(&slots, &whole, start, bytes, &inside)?;
                let count = bytes / how.dtype.size();
                lane.call(group, |calls| calls.all_reduce(slot, slot, count, how.dtype, op))?;
            }
            self.peers.publish_folded()?;
            self.peers.fold_into(&[Both::spoken(&slots)], targets, start, bytes, &after)?;
            self.peers.finish()?;
        }
        Ok(())
    }

    /// Gives what of a member's long tensor is wanted here to everybody.
    fn spread(
        &mut self,
        group: &mut Group,
        from: usize,
        len: usize,
        sources: &[Span],
        wanted: &[Span],
    ) -> Result<(), Error> {
        let source = self.gpus.iter().position(|gpu| gpu.contains(&from)).unwrap_or(0);
        let place = self.gpus[source].iter().position(|&member| member == from).unwrap_or(0);
        let room = self.room(group, len)?;
        for start in (0..len).step_by(room) {
            let bytes = room.min(len - start);
            let slots = self.peers.begin()?;
            self.peers.fill(sources, start, bytes, slots[self.peers.me()])?;
            self.peers.publish()?;
            if let Some((_, lane)) = &self.lane {
                let slot = Both::spoken(&slots);
                if self.mine == source && place > 0 {
                    let pieces = [piece(slots[place], slot, bytes, 1)];
                    // SAFETY: both slots hold the range.
                    unsafe { self.peers.launch(&Kernel::Move, &pieces, &[]) }?;
                }
                lane.call(group, |calls| calls.broadcast(slot, slot, bytes, DType::U8, source))?;
            }
            self.peers.publish_folded()?;
            self.peers.take(Both::spoken(&slots), wanted, start, bytes)?;
            self.peers.finish()?;
        }
        Ok(())
    }

    /// Whether NCCL can do its part of a reduction.
    fn knows(how: &Reduction) -> bool {
        let exact = how.op != ReduceOp::Average && how.prescale == 1.0 && how.postscale == 1.0;
        let op = if how.op == ReduceOp::Average { ReduceOp::Sum } else { how.op };
        ronde_nccl::knows(how.dtype, op) && (exact || how.dtype.is_float())
    }
}

impl Path for Both {
    fn entry(&self) -> &Arc<Stream> {
        self.peers.entry()
    }

    fn allreduce(
        &mut self,
        group: &mut Group,
        sources: Sources<'_>,
        targets: &[Span],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        self.is_staged = !Both::knows(how);
        if self.is_staged {
            return self.staged.allreduce(group, sources, targets, len, how);
        }
        let targets = if matches!(sources, Sources::Nothing) { &[] } else { targets };
        self.reduce(group, sources, targets, len, how)
    }

    fn reducescatter(
        &mut self,
        group: &mut Group,
        sources: &[Span],
        shares: &[Vec<Span>],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        self.is_staged = !Both::knows(how);
        if self.is_staged {
            return self.staged.reducescatter(group, sources, shares, len, how);
        }
        self.reduce(group, Sources::Tensors(sources), &shares[group.rank()], len, how)
    }

    fn hand(&mut self, group: &mut Group, what: &Handing) -> Result<(), Error> {
        let me = group.rank();
        self.is_staged = false;
        for (member, (&len, wanted)) in what.lens.iter().zip(&what.wanted).enumerate() {
            let sources = if member == me { what.sources.as_slice() } else { &[] };
            self.spread(group, member, len, sources, wanted)?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<Arc<Mark>, Error> {
        let mark = self.peers.end()?;
        // The host's copies come behind the same tensors in a stream of their own.
        if self.is_staged { self.staged.end() } else { Ok(mark) }
    }

    fn drain(&mut self) {
        if let Some((_, lane)) = &mut self.lane {
            lane.give_up();
        }
        self.peers.drain();
        self.staged.drain();
    }
}
