//! The collectives of a rank by itself: copies, and factors.

use std::sync::Arc;

use ronde_collective::{Group, Reduction};
use ronde_cuda::{Kernel, Launcher, Mark, Stream};
use ronde_engine::Error;

use crate::failure::of_cuda;
use crate::path::{Fold, Handing, Path, Sources};
use crate::spans::{Span, piece};

/// See the module's text.
pub(crate) struct Alone {
    launcher: Launcher,
}

impl Alone {
    pub(crate) fn new(stream: &Arc<Stream>) -> Alone {
        Alone { launcher: Launcher::new(stream) }
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

    fn reduce(&mut self, sources: &[Span], targets: &[Span], how: &Reduction) -> Result<(), Error> {
        let fold = Fold::new(how, 1)?;
        if fold.is_copy() {
            return self.copy(sources.iter().zip(targets));
        }
        let mut pieces = Vec::new();
        for (from, to) in sources.iter().zip(targets) {
            pieces.push(piece(from.address, to.address, from.bytes, fold.unit()));
        }
        let (kernel, words) = fold.kernel(&[0]);
        // SAFETY: as above.
        unsafe { self.launcher.launch(&kernel, &pieces, &words) }.map_err(of_cuda)
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
        _len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        match sources {
            Sources::Tensors(sources) => self.reduce(sources, targets, how),
            Sources::Nothing => Ok(()),
        }
    }

    fn reducescatter(
        &mut self,
        _group: &mut Group,
        sources: &[Span],
        shares: &[Vec<Span>],
        _len: usize,
        how: &Reduction,
    ) -> Result<(), Error> {
        self.reduce(sources, &shares[0], how)
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
