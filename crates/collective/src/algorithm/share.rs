//! Sharing over segments: broadcast and allgather in one host.
//!
//! Each slice has one owner, who copies it into its result slot chunk by chunk; whoever wants it copies it out.
//!
//! Steps: 1 meeting a chunk, hidden behind the next chunk's copy. Bytes for slices of S in all: owners write their
//! part into shared memory once, everybody reads S less its own.

use super::extents::Extents;
use super::sliced::{Slice, part, pieces, places};
use super::table;
use crate::error::Result;
use crate::host::{Host, Work};

struct Sharing<'a> {
    extents: &'a Extents<'a>,
    slices: &'a [Slice],
    places: Vec<usize>,
    me: usize,
    piece: usize,
}

/// Gives every slice, from its owner's sources, to everybody on the host who wants it.
pub(super) fn share(host: &mut Host, me: usize, extents: &Extents<'_>, slices: &[Slice]) -> Result<()> {
    share_while(host, me, extents, slices, &mut || Ok(()))
}

/// The same; `meanwhile` is called once a chunk.
pub(super) fn share_while(
    host: &mut Host,
    me: usize,
    extents: &Extents<'_>,
    slices: &[Slice],
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    if let [only] = slices
        && only.len <= table::ONE_PHASE_SHARE
    {
        return share_small(host, me, extents, *only);
    }
    let longest = slices.iter().map(|slice| slice.len).max().unwrap_or(0);
    let places = places(slices.iter().map(|slice| slice.owner), host.members());
    let most = places.iter().max().map_or(1, |place| place + 1);
    let (piece, chunks) = pieces(host.members(), most, longest);
    host.stream(chunks, &mut Sharing { extents, slices, places, me, piece }, meanwhile)
}

/// One phase, in which only the owner says something.
fn share_small(host: &mut Host, me: usize, extents: &Extents<'_>, only: Slice) -> Result<()> {
    let fill = |slot| {
        if only.owner == me {
            // SAFETY: the slot holds that many bytes, and the owner's sources are readable.
            unsafe { extents.pack(only.start, only.len, slot, false) };
        }
    };
    host.round(only.len, fill, |inputs| {
        if only.owner != me {
            // SAFETY: the owner has published that many bytes; targets are private memory.
            unsafe { extents.unpack(only.start, only.len, inputs[only.owner]) };
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
            // SAFETY: the result slot holds one piece for each slice owned; the owner's sources are readable.
            unsafe {
                let place = result.add(self.places[index] * self.piece);
                self.extents.pack(slice.start + start, len, place, stream);
            }
        }
    }

    fn take(&mut self, chunk: usize, results: &[*const u8]) -> usize {
        let mut taken = 0;
        for (index, slice) in self.slices.iter().enumerate().filter(|(_, slice)| slice.owner != self.me) {
            let (start, len) = part(slice.len, self.piece, chunk);
            // SAFETY: the owner has posted this chunk, and its slot holds the piece at that place.
            taken += unsafe {
                let from = results[slice.owner].add(self.places[index] * self.piece);
                self.extents.unpack(slice.start + start, len, from)
            };
        }
        taken
    }
}
