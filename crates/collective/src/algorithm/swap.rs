//! All-to-all over segments in one host.
//!
//! Chunk by chunk, every rank lays one piece for each other rank into its input slot and picks the piece meant for
//! itself out of everybody's.
//!
//! Steps: 1 meeting a chunk, hidden behind the next chunk's copy. Bytes: what a rank sends is written to shared memory
//! once, what it receives is read once.

use super::sliced::{part, pieces};
use crate::error::Result;
use crate::host::{Host, Work};
use crate::kernel::copy;

/// Bytes this rank exchanges with one other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parcel {
    pub(super) source: *const u8,
    pub(super) sent: usize,
    pub(super) target: *mut u8,
    pub(super) received: usize,
}

struct Swap<'a> {
    parcels: &'a [Parcel],
    me: usize,
    piece: usize,
}

/// Exchanges `parcels` (one for each rank on the host; the own one is left alone). `longest` is the length of the
/// longest parcel between any two ranks, which all must agree on.
pub(super) fn swap(host: &mut Host, me: usize, parcels: &[Parcel], longest: usize) -> Result<()> {
    let (piece, chunks) = pieces(host.members(), host.members(), longest);
    host.stream(chunks, &mut Swap { parcels, me, piece }, &mut || Ok(()))
}

impl Work for Swap<'_> {
    const FILLS: bool = true;
    const TAKES: bool = false;

    fn fill(&mut self, chunk: usize, slot: *mut u8, stream: bool) -> usize {
        let mut filled = 0;
        for (member, parcel) in self.parcels.iter().enumerate().filter(|(member, _)| *member != self.me) {
            let (start, len) = part(parcel.sent, self.piece, chunk);
            // SAFETY: the slot holds one piece for each member.
            unsafe { copy(slot.add(member * self.piece), parcel.source.add(start), len, stream) };
            filled += len;
        }
        filled
    }

    fn fold(&mut self, chunk: usize, inputs: &[*const u8], _result: *mut u8, _stream: bool) {
        for (member, parcel) in self.parcels.iter().enumerate().filter(|(member, _)| *member != self.me) {
            let (start, len) = part(parcel.received, self.piece, chunk);
            // SAFETY: that member has filled its slot for this chunk, with our piece at our position.
            unsafe { copy(parcel.target.add(start), inputs[member].add(self.me * self.piece), len, false) };
        }
    }

    fn take(&mut self, _chunk: usize, _results: &[*const u8]) -> usize {
        0
    }
}
