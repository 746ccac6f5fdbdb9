//! Brings tensors together in a buffer and apart again, and folds buffers into tensors.
//!
//! A tensor that travels in a narrower type than it has in memory is narrowed while it is packed and widened while it is
//! unpacked, so a cast costs no pass over memory of its own, and no launch: there is one for each type that the tensors of a
//! batch have in memory, which mostly is one. Factors apply to the type that travels, so results have the bits that a cast, a reduction and
//! a cast back have.

use std::sync::Arc;

use ronde_collective::types::DType;
use ronde_cuda::{Kernel, Launcher, Piece, Pooled, Stream};
use ronde_engine::Error;

use crate::failure::of_cuda;
use crate::path::Fold;
use crate::spans::{Cast, Span};

/// A run of a tensor, and where its like is: an address, or the place in every source of a fold.
type Run = (Span, u64);

/// Runs by how their elements lie in memory.
fn forms(runs: impl IntoIterator<Item = Run>) -> Vec<(Option<Cast>, Vec<Run>)> {
    let mut forms: Vec<(Option<Cast>, Vec<Run>)> = Vec::new();
    for run in runs {
        match forms.iter_mut().find(|(cast, _)| *cast == run.0.cast) {
            Some((_, runs)) => runs.push(run),
            None => forms.push((run.0.cast, vec![run])),
        }
    }
    forms
}

/// A run from one place to another as work for a kernel, whose lengths count in units of so many bytes.
pub(crate) fn piece(from: u64, to: u64, bytes: usize, unit: usize) -> Piece {
    Piece { a: from, b: to, n: (bytes / unit) as u64 }
}

/// Copies runs from tensors to where they are to lie as they travel.
///
/// # Safety
/// Both are that long, and valid until the stream has come past this.
pub(crate) unsafe fn pack(launcher: &mut Launcher, runs: impl IntoIterator<Item = Run>) -> Result<(), Error> {
    // SAFETY: as the caller promises.
    unsafe { pack_scaled(launcher, runs, DType::U8, 1.0) }
}

/// The same, with a factor for floats of the type that travels; 1 is none.
///
/// # Safety
/// As for [`pack`].
pub(crate) unsafe fn pack_scaled(
    launcher: &mut Launcher,
    runs: impl IntoIterator<Item = Run>,
    wire: DType,
    factor: f64,
) -> Result<(), Error> {
    for (cast, runs) in forms(runs) {
        let (kernel, words, unit) = match cast {
            Some(Cast { stored: from, wire: to }) => {
                (Kernel::Convert { from, to }, vec![factor.to_bits()], to.size())
            }
            None if factor == 1.0 => (Kernel::Move, Vec::new(), 1),
            None => (Kernel::Convert { from: wire, to: wire }, vec![factor.to_bits()], wire.size()),
        };
        let pieces: Vec<Piece> =
            runs.iter().map(|(span, to)| piece(span.address, *to, span.bytes, unit)).collect();
        // SAFETY: as the caller promises.
        unsafe { launcher.launch(&kernel, &pieces, &words) }.map_err(of_cuda)?;
    }
    Ok(())
}

/// Copies runs to tensors from where they lie as they travel.
///
/// # Safety
/// As for [`pack`].
pub(crate) unsafe fn unpack(
    launcher: &mut Launcher,
    runs: impl IntoIterator<Item = Run>,
) -> Result<(), Error> {
    for (cast, runs) in forms(runs) {
        let (kernel, words, unit) = match cast {
            Some(Cast { stored: to, wire: from }) => {
                (Kernel::Convert { from, to }, vec![1.0_f64.to_bits()], from.size())
            }
            None => (Kernel::Move, Vec::new(), 1),
        };
        let pieces: Vec<Piece> =
            runs.iter().map(|(span, from)| piece(*from, span.address, span.bytes, unit)).collect();
        // SAFETY: as the caller promises.
        unsafe { launcher.launch(&kernel, &pieces, &words) }.map_err(of_cuda)?;
    }
    Ok(())
}

/// Folds what lies at the runs' places after each of the bases into tensors.
///
/// # Safety
/// As for [`pack`], for every base.
pub(crate) unsafe fn fold(
    launcher: &mut Launcher,
    runs: impl IntoIterator<Item = Run>,
    bases: &[u64],
    how: &Fold,
) -> Result<(), Error> {
    for (cast, runs) in forms(runs) {
        let (kernel, words) = how.kernel(bases, cast.map(|cast| cast.stored));
        let pieces: Vec<Piece> =
            runs.iter().map(|(span, at)| piece(*at, span.address, span.bytes, how.unit())).collect();
        // SAFETY: as the caller promises.
        unsafe { launcher.launch(&kernel, &pieces, &words) }.map_err(of_cuda)?;
    }
    Ok(())
}

/// Bytes that are kept from one batch to the next. Only a tensor that is as large by itself needs more.
const MOST_KEPT: usize = 256 << 20;

/// Device memory that a batch is packed into, and the next one after it.
#[derive(Default)]
pub(crate) struct Room {
    memory: Option<Pooled>,
}

impl Room {
    /// So many bytes, which everything given to the stream before is done with when they are used there.
    pub(crate) fn of(&mut self, stream: &Arc<Stream>, bytes: usize) -> Result<u64, Error> {
        if self.memory.as_ref().is_none_or(|memory| memory.len() < bytes) {
            self.memory = None;
            self.memory = Some(Pooled::new(stream, bytes.next_power_of_two()).map_err(of_cuda)?);
        }
        Ok(self.memory.as_ref().map_or(0, Pooled::address))
    }

    /// Ends a batch: gives back, behind what the stream was given, what is too much to keep from others.
    pub(crate) fn end(&mut self) {
        if self.memory.as_ref().is_some_and(|memory| memory.len() > MOST_KEPT) {
            self.memory = None;
        }
    }
}
