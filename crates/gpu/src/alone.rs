//! The collectives of a rank by itself: copies, factors, and what travelling in a narrower type costs: a tensor that would is
//! narrowed and widened again, as it is where there are others.

use std::sync::Arc;

use ronde_collective::{Group, Reduction};
use ronde_cuda::{Kernel, Launcher, Mark, Stream};
use ronde_engine::Error;

use crate::failure::of_cuda;
use crate::packing::{self, Room, piece};
use crate::path::{Fold, Handing, Path, Sources};
use crate::spans::{Span, within};

/// Bytes that are narrowed and widened at once. They stay in the GPU's cache.
const CHUNK: usize = 8 << 20;

/// See the module's text.
pub(crate) struct Alone {
    launcher: Launcher,
    room: Room,
}

impl Alone {
    pub(crate) fn new(stream: &Arc<Stream>) -> Alone {
        Alone { launcher: Launcher::new(stream), room: Room::default() }
    }

    /// Copies runs to runs of the same lengths, those apart that are the same memory.
    fn copy<'a>(&mut self, runs: impl Iterator<Item = (&'a Span, &'a Span)> + Clone) -> Result<(), Error> {
        let runs = runs.filter(|(from, to)| from.address != to.address);
        let mut pieces = Vec::new();
        for (from, to) in runs {
            pieces.push(piece(from.address, to.address, from.bytes, 1));
        }
        // SAFETY: both are the submitter's tensors.
        unsafe { self.launcher.launch(&Kernel::Move, &pieces, &[]) }.map_err(of_cuda)
    }

    fn reduce(
        &mut self,
        sources: &[Span],
        targets: &[Span],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        let fold = Fold::new(how, 1)?;
        if sources.iter().any(|span| span.cast.is_some()) {
            return self.narrow_and_widen(sources, targets, len, &fold);
        }
        if fold.is_copy() {
            return self.copy(sources.iter().zip(targets));
        }
        let mut pieces = Vec::new();
        for (from, to) in sources.iter().zip(targets) {
            pieces.push(piece(from.address, to.address, from.bytes, fold.unit()));
        }
        let (kernel, words) = fold.kernel(&[0], None);
        // SAFETY: as above.
        unsafe { self.launcher.launch(&kernel, &pieces, &words) }.map_err(of_cuda)
    }

    /// Has the long tensor travel no further than to a buffer and back.
    fn narrow_and_widen(
        &mut self,
        sources: &[Span],
        targets: &[Span],
        len: usize,
        fold: &Fold,
    ) -> Result<(), Error> {
        let buffer = self.room.of(self.launcher.stream(), len.min(CHUNK))?;
        for start in (0..len).step_by(CHUNK) {
            let range = start..len.min(start + CHUNK);
            let packed = within(sources, range.clone()).map(|span| (span, buffer + span.at as u64));
            let unpacked = within(targets, range).map(|span| (span, span.at as u64));
            // SAFETY: as above, and the buffer holds the chunk.
            unsafe {
                packing::pack(&mut self.launcher, packed)?;
                packing::fold(&mut self.launcher, unpacked, &[buffer], fold)?;
            }
        }
        Ok(())
    }
}

impl Path for Alone {
    fn entry(&self) -> &Arc<Stream> {
        self.launcher.stream()
    }

    fn allreduce(
        &mut self,
        _group: &mut Group,
        sources: Sources<'_>,
        targets: &[Span],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        match sources {
            Sources::Tensors(sources) => self.reduce(sources, targets, len, how),
            Sources::Nothing => Ok(()),
        }
    }

    fn reducescatter(
        &mut self,
        _group: &mut Group,
        sources: &[Span],
        shares: &[Vec<Span>],
        len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        self.reduce(sources, &shares[0], len, how)
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn hand(&mut self, _group: &mut Group, what: &Handing) -> Result<(), Error> {
        self.copy(what.given[0].iter().zip(&what.wanted[0]))
    }

    fn end(&mut self) -> Result<Arc<Mark>, Error> {
        self.launcher.end().map_err(of_cuda)
    }

    fn drain(&mut self) {
        // A failure of the GPU has ended its work as well.
        let _ = self.launcher.stream().synchronize();
    }
}
