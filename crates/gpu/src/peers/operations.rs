//! What happens in the rounds of each operation.
//!
//! Bytes for tensors of S bytes on n ranks, read and written by each rank: an allreduce *at once* copies S into the slot and folds
//! all n slots straight into the tensors (n + 3) S; *in slices* each rank folds its part into its slot, and all copy the parts
//! from their owners, (5 + 1/n) S. At once there is one meeting less, and a meeting costs more than it looks: until all ranks have come to
//! it the GPU has to change between their contexts n - 1 times, in which it could move [`CHANGE`] bytes each. So a round is cut into slices only where
//! it saves more bytes than that.

use std::sync::Arc;

use ronde_collective::{Group, Reduction};
use ronde_cuda::{Kernel, Mark, Stream};
use ronde_engine::Error;

use super::Peers;
use crate::failure::of_cuda;
use crate::packing::{self, piece};
use crate::path::{Fold, Handing, Path, Sources, neutral};
use crate::spans::{Span, share, within};

/// Bytes that a GPU moves while it changes from one process to another: 145 µs at 3.8 TB/s on an H200.
const CHANGE: usize = 550 << 20;

/// Whether rounds of so many bytes on so many ranks are folded at once.
fn at_once(bytes: usize, ranks: usize) -> bool {
    // What slices save of each byte, times the bytes, against the changes of one more meeting.
    let saved = (ranks * ranks).saturating_sub(2 * ranks + 1);
    bytes.saturating_mul(saved) <= CHANGE * (ranks - 1)
}

impl Peers {
    /// Copies what of a rank's long tensor lies in a range into its slot, as it travels.
    pub(crate) fn fill(&mut self, spans: &[Span], start: usize, len: usize, slot: u64) -> Result<(), Error> {
        let runs = within(spans, start..start + len).map(|span| (span, slot + span.at as u64));
        // SAFETY: sources are the submitters' tensors, and the slot has room for the range.
        unsafe { packing::pack(&mut self.launcher, runs) }
    }

    /// Fills this rank's slot with what it brings to a reduction.
    pub(crate) fn contribute(
        &mut self,
        sources: Sources<'_>,
        how: &Reduction,
        start: usize,
        bytes: usize,
        slots: &[u64],
    ) -> Result<(), Error> {
        let own = slots[self.me()];
        match sources {
            Sources::Tensors(spans) => self.fill(spans, start, bytes, own),
            Sources::Nothing => self.fill_neutral(how, bytes, own),
        }
    }

    /// Fills the slot with what changes nothing.
    fn fill_neutral(&mut self, how: &Reduction, bytes: usize, slot: u64) -> Result<(), Error> {
        let pieces = [piece(0, slot, bytes, 1)];
        // SAFETY: the slot has room for the range.
        unsafe { self.launch(&Kernel::Fill, &pieces, &[neutral(how)]) }
    }

    /// Folds all slots straight into the tensors that lie in a range.
    pub(crate) fn fold_into(
        &mut self,
        slots: &[u64],
        targets: &[Span],
        start: usize,
        bytes: usize,
        how: &Fold,
    ) -> Result<(), Error> {
        let runs = within(targets, start..start + bytes).map(|span| (span, span.at as u64));
        // SAFETY: all slots hold the range, and the targets are the submitters' to give.
        unsafe { packing::fold(&mut self.launcher, runs, slots, how) }
    }

    /// Copies what is wanted of a slot to where it goes.
    pub(crate) fn take(
        &mut self,
        slot: u64,
        wanted: &[Span],
        start: usize,
        bytes: usize,
    ) -> Result<(), Error> {
        let runs = within(wanted, start..start + bytes).map(|span| (span, slot + span.at as u64));
        // SAFETY: the slot holds the range, and the targets are this rank's to give.
        unsafe { packing::unpack(&mut self.launcher, runs) }
    }

    /// Folds this rank's part of all slots into its own.
    fn fold_share(&mut self, slots: &[u64], bytes: usize, how: &Fold) -> Result<(), Error> {
        let part = share(bytes, self.group.size(), self.me());
        let pieces = [piece(part.start as u64, slots[self.me()] + part.start as u64, part.len(), how.unit())];
        let (kernel, words) = how.kernel(slots, None);
        // SAFETY: all slots hold the range, of which nobody else reads or writes this part.
        unsafe { self.launch(&kernel, &pieces, &words) }
    }

    /// Copies everybody's part to the tensors.
    fn collect(&mut self, slots: &[u64], targets: &[Span], start: usize, bytes: usize) -> Result<(), Error> {
        let runs = slots.iter().enumerate().flat_map(|(member, slot)| {
            let part = share(bytes, slots.len(), member);
            let first = slot + part.start as u64;
            within(targets, start + part.start..start + part.end)
                .map(move |span| (span, first + span.at as u64))
        });
        // SAFETY: as in `fold_into`.
        unsafe { packing::unpack(&mut self.launcher, runs) }
    }
}

impl Path for Peers {
    fn entry(&self) -> &Arc<Stream> {
        self.stream()
    }

    fn allreduce(
        &mut self,
        _group: &mut Group,
        sources: Sources<'_>,
        targets: &[Span],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        let fold = Fold::new(how, self.group.size())?;
        let targets = if matches!(sources, Sources::Nothing) { &[] } else { targets };
        let room = self.prepare(len)?;
        for start in (0..len).step_by(room) {
            let bytes = room.min(len - start);
            let slots = self.begin()?;
            self.contribute(sources, how, start, bytes, &slots)?;
            self.publish()?;
            if at_once(bytes, self.group.size()) {
                self.fold_into(&slots, targets, start, bytes, &fold)?;
            } else {
                self.fold_share(&slots, bytes, &fold)?;
                self.publish_folded()?;
                self.collect(&slots, targets, start, bytes)?;
            }
            self.finish()?;
        }
        Ok(())
    }

    fn reducescatter(
        &mut self,
        _group: &mut Group,
        sources: &[Span],
        shares: &[Vec<Span>],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        let fold = Fold::new(how, self.group.size())?;
        let room = self.prepare(len)?;
        for start in (0..len).step_by(room) {
            let bytes = room.min(len - start);
            let slots = self.begin()?;
            self.fill(sources, start, bytes, slots[self.me()])?;
            self.publish()?;
            self.fold_into(&slots, &shares[self.me()], start, bytes, &fold)?;
            self.finish()?;
        }
        Ok(())
    }

    fn hand(&mut self, _group: &mut Group, what: &Handing) -> Result<(), Error> {
        let longest = what.lens.iter().copied().max().unwrap_or(0);
        let room = self.prepare(longest)?;
        for start in (0..longest).step_by(room) {
            let bytes = |len: usize| len.saturating_sub(start).min(room);
            let slots = self.begin()?;
            self.fill(&what.sources, start, bytes(what.lens[self.me()]), slots[self.me()])?;
            self.publish()?;
            let runs = what.wanted.iter().zip(&slots).zip(&what.lens).flat_map(|((wanted, slot), &len)| {
                within(wanted, start..start + bytes(len)).map(move |span| (span, slot + span.at as u64))
            });
            // SAFETY: the slots hold their ranges, and the targets are this rank's to give.
            unsafe { packing::unpack(&mut self.launcher, runs) }?;
            self.finish()?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<Arc<Mark>, Error> {
        self.launcher.end().map_err(of_cuda)
    }

    fn drain(&mut self) {
        // The others must not wait for this rank on the host.
        self.group.abandon(&ronde_collective::Error::Invalid("the GPU failed".into()));
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::at_once;

    #[test]
    fn few_ranks_fold_at_once_and_many_in_slices_once_it_pays() {
        for (ranks, most) in [(2, usize::MAX >> 20), (3, 550), (4, 235), (8, 81), (16, 36)] {
            assert!(at_once(most << 20, ranks), "{ranks} ranks, {most} MiB");
            assert!(ranks == 2 || !at_once((most + 1) << 20, ranks), "{ranks} ranks, more than {most} MiB");
        }
    }
}
