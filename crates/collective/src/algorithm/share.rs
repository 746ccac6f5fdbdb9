//! Sharing over segments: broadcast and allgather in one host.
//!
//! Each slice has one owner, who copies it into its result slot chunk by chunk; whoever wants it copies it out.
//!
//! Steps: 1 meeting a chunk, hidden behind the next chunk's copy. Bytes for slices of S in all: owners write their
//! part into shared memory once, everybody reads S less its own.

use super::sliced::{part, pieces, places};
use super::table;
use crate::error::Result;
use crate::host::{Host, Work};
use crate::kernel::copy;

/// A run of bytes that its owner has and others want.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared {
    /// Where it lies with its owner (ignored elsewhere).
    pub(super) source: *const u8,
    /// Where it goes with the others; null if this rank does not want it.
    pub(super) target: *mut u8,
    pub(super) len: usize,
    /// Position in the host.
    pub(super) owner: usize,
}

struct Sharing<'a> {
    slices: &'a [Shared],
    places: Vec<usize>,
    me: usize,
    piece: usize,
}

/// Gives every slice to everybody on the host who wants it.
pub(super) fn share(host: &mut Host, me: usize, slices: &[Shared]) -> Result<()> {
    share_while(host, me, slices, &mut || Ok(()))
}

/// The same; `meanwhile` is called once a chunk.
pub(super) fn share_while(
    host: &mut Host,
    me: usize,
    slices: &[Shared],
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    if let [only] = slices
        && only.len <= table::ONE_PHASE_SHARE
    {
        return share_small(host, me, only);
    }
    let longest = slices.iter().map(|slice| slice.len).max().unwrap_or(0);
    let places = places(slices.iter().map(|slice| slice.owner), host.members());
    let most = places.iter().max().map_or(1, |place| place + 1);
    let (piece, chunks) = pieces(host.members(), most, longest);
    host.stream(chunks, &mut Sharing { slices, places, me, piece }, meanwhile)
}

/// One phase, in which only the owner says something.
fn share_small(host: &mut Host, me: usize, only: &Shared) -> Result<()> {
    // SAFETY: the owner's source is readable for that many bytes.
    let payload = (only.owner == me).then(|| unsafe { std::slice::from_raw_parts(only.source, only.len) });
    host.round(payload, only.len, |inputs| {
        if only.owner != me && !only.target.is_null() {
            // SAFETY: the owner has published that many bytes; the target is private memory of that length.
            unsafe { std::ptr::copy_nonoverlapping(inputs[only.owner], only.target, only.len) };
        }
    })
}

impl Work for Sharing<'_> {
    const FILLS: bool = false;
    const TAKES: bool = true;

    fn fill(&mut self, _chunk: usize, _slot: *mut u8, _stream: bool) -> usize {
        0
    }

    fn fold(&mut self, chunk: usize, _inputs: &[*const u8], result: *mut u8, stream: bool) {
        for (index, slice) in self.slices.iter().enumerate().filter(|(_, slice)| slice.owner == self.me) {
            let (start, len) = part(slice.len, self.piece, chunk);
            // SAFETY: the result slot holds one piece for each slice owned; the source holds `slice.len` bytes.
            unsafe {
                copy(result.add(self.places[index] * self.piece), slice.source.add(start), len, stream)
            };
        }
    }

    fn take(&mut self, chunk: usize, results: &[*const u8]) -> usize {
        let mut taken = 0;
        for (index, slice) in self.slices.iter().enumerate() {
            if slice.owner == self.me || slice.target.is_null() {
                continue;
            }
            let (start, len) = part(slice.len, self.piece, chunk);
            // SAFETY: the owner has posted this chunk, and its slot holds the piece at that place.
            unsafe {
                let from = results[slice.owner].add(self.places[index] * self.piece);
                copy(slice.target.add(start), from, len, false);
            }
            taken += len;
        }
        taken
    }
}
