//! Sliced reduction over shared segments: allreduce and reduce-scatter in one host.
//!
//! The tensor is cut into slices, each owned by one rank. Chunk by chunk, every rank copies what others own into
//! its input slot, folds the slices it owns over all input slots (its own part straight from private memory,
//! in member order, so bits depend neither on who folds nor on when), and copies what others folded out of
//! their result slots.
//!
//! Steps: 2 meetings a chunk, hidden behind the next chunk's copy. Bytes for a tensor of S over n ranks, a rank:
//! private memory is read once and written once (S each, the floor); shared memory, which stays in cache, is
//! written S·(n-1)/n + S/n and read S·(n-1)/n twice.

use super::{FIRST, WHOLE, split, table};
use crate::error::Result;
use crate::group::{Group, Reduction};
use crate::host::{Host, Work};
use crate::kernel::{FoldPlan, Stage, copy, fold};

/// A run of the tensor with one owner.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    /// This rank's input for it.
    pub(super) source: *const u8,
    /// Where the result goes; null if this rank does not want it.
    pub(super) target: *mut u8,
    /// In bytes.
    pub(super) len: usize,
    /// Position in the host.
    pub(super) owner: usize,
}

/// The work of one pass; see the module's text.
struct Sliced<'a, const GATHER: bool> {
    slices: &'a [Slice],
    /// Position of each slice among those of its owner.
    places: Vec<usize>,
    me: usize,
    plan: &'a FoldPlan,
    stage: Stage,
    element: usize,
    /// Bytes of each slice in one chunk.
    piece: usize,
    sources: Vec<*const u8>,
}

/// Reduces `slices` on the host: every target that is not null receives the result (`gather`), or only those
/// of slices this rank owns. `meanwhile` is called once a chunk.
#[expect(clippy::too_many_arguments, reason = "the parts of a reduction")]
pub(super) fn reduce(
    host: &mut Host,
    me: usize,
    slices: &[Slice],
    plan: &FoldPlan,
    stage: Stage,
    element: usize,
    gather: bool,
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let longest = slices.iter().map(|slice| slice.len).max().unwrap_or(0);
    let (piece, chunks) = pieces(host.members(), slices.len(), longest);
    let places = places(slices.iter().map(|slice| slice.owner), host.members());
    let sources = Vec::with_capacity(host.members());
    if gather {
        let mut work = Sliced::<true> { slices, places, me, plan, stage, element, piece, sources };
        host.stream(chunks, &mut work, meanwhile)
    } else {
        let mut work = Sliced::<false> { slices, places, me, plan, stage, element, piece, sources };
        host.stream(chunks, &mut work, meanwhile)
    }
}

/// Bytes of each of `slices` that go into one chunk, and how many chunks the longest slice needs. Evened out, so
/// that the last chunk is not a crumb.
pub(super) fn pieces(ranks: usize, slices: usize, longest: usize) -> (usize, usize) {
    const LINE: usize = 64;
    let most = (table::host(ranks).chunk / slices.max(1) / LINE).max(1) * LINE;
    let chunks = longest.div_ceil(most);
    (longest.div_ceil(chunks.max(1)).next_multiple_of(LINE), chunks)
}

/// Position of each slice among those of the same owner.
pub(super) fn places(owners: impl Iterator<Item = usize>, members: usize) -> Vec<usize> {
    let mut owned = vec![0; members];
    owners
        .map(|owner| {
            owned[owner] += 1;
            owned[owner] - 1
        })
        .collect()
}

/// The part of a slice of `len` bytes that lies in a chunk: offset and length.
pub(super) fn part(len: usize, piece: usize, chunk: usize) -> (usize, usize) {
    let start = (chunk * piece).min(len);
    (start, piece.min(len - start))
}

impl<const GATHER: bool> Work for Sliced<'_, GATHER> {
    const FILLS: bool = true;
    const TAKES: bool = GATHER;

    fn fill(&mut self, chunk: usize, slot: *mut u8, stream: bool) -> usize {
        let mut filled = 0;
        for (index, slice) in self.slices.iter().enumerate().filter(|(_, slice)| slice.owner != self.me) {
            let (start, len) = part(slice.len, self.piece, chunk);
            // SAFETY: the slot holds one piece for each slice; the source is readable for `slice.len` bytes.
            unsafe { copy(slot.add(index * self.piece), slice.source.add(start), len, stream) };
            filled += len;
        }
        filled
    }

    fn fold(&mut self, chunk: usize, inputs: &[*const u8], result: *mut u8, stream: bool) {
        let stage = Stage { stream: stream && GATHER, ..self.stage };
        for (index, slice) in self.slices.iter().enumerate().filter(|(_, slice)| slice.owner == self.me) {
            let (start, len) = part(slice.len, self.piece, chunk);
            self.sources.clear();
            for (member, input) in inputs.iter().enumerate() {
                // SAFETY: stays within a slot, or within this rank's own input.
                self.sources.push(unsafe {
                    if member == self.me { slice.source.add(start) } else { input.add(index * self.piece) }
                });
            }
            let place = self.places[index] * self.piece;
            // SAFETY: every source holds `len` bytes that nobody writes before this rank has posted the fold; the
            // result slot holds one piece for each slice owned and is read by others only after that.
            unsafe {
                let published = result.add(place);
                // Past the caches goes what is named first, which then must be the slot.
                let (to, also) = if slice.target.is_null() {
                    (published, None)
                } else {
                    let private = slice.target.add(start);
                    match (GATHER, stage.stream) {
                        (false, _) => (private, None),
                        (true, false) => (private, Some(published)),
                        (true, true) => (published, Some(private)),
                    }
                };
                fold(self.plan, stage, to, also, &self.sources, len / self.element);
            }
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

/// Allreduce in one host: one slice a rank.
pub(super) fn allreduce(
    group: &mut Group,
    source: *const u8,
    output: &mut [u8],
    how: &Reduction,
    plan: &FoldPlan,
) -> Result<()> {
    let element = how.dtype.size();
    let slices =
        cut(source, output.as_mut_ptr(), output.len() / element, element, group.size(), group.size());
    let Some(host) = &mut group.host else { unreachable!("a host with several ranks") };
    reduce(host, group.local, &slices, plan, WHOLE, element, true, &mut || Ok(()))
}

/// Cuts a tensor into `count` slices, dealt to `owners` ranks in turn.
pub(super) fn cut(
    source: *const u8,
    target: *mut u8,
    elements: usize,
    element: usize,
    count: usize,
    owners: usize,
) -> Vec<Slice> {
    const PAGE: usize = 4096;
    let align = if elements * element >= count * PAGE { PAGE / element } else { 64 / element };
    split(elements, count, align)
        .into_iter()
        .enumerate()
        .map(|(index, (start, len))| {
            // SAFETY: a split stays within the tensor.
            let (source, target) = unsafe { (source.add(start * element), target.add(start * element)) };
            Slice { source, target, len: len * element, owner: index % owners }
        })
        .collect()
}

/// Reduce-scatter in one host: member `m` owns the run of `lengths[m]` bytes.
pub(super) fn reducescatter(
    group: &mut Group,
    input: &[u8],
    lengths: &[usize],
    output: &mut [u8],
    how: &Reduction,
    plan: &FoldPlan,
) -> Result<()> {
    let mut start = 0;
    let slices: Vec<Slice> = (0..lengths.len())
        .map(|owner| {
            let source = input[start..].as_ptr();
            start += lengths[owner];
            let target = if owner == group.local { output.as_mut_ptr() } else { std::ptr::null_mut() };
            Slice { source, target, len: lengths[owner], owner }
        })
        .collect();
    let Some(host) = &mut group.host else { unreachable!("a host with several ranks") };
    let stage = if group.hosts.len() == 1 { WHOLE } else { FIRST };
    reduce(host, group.local, &slices, plan, stage, how.dtype.size(), false, &mut || Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::SLOT;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_of_all_slices_fit_a_slot_and_cover_the_longest(
            ranks in 1usize..70, more in 0usize..70, longest in 0usize..(64 << 20)
        ) {
            let slices = ranks + more;
            let (piece, chunks) = pieces(ranks, slices, longest);
            prop_assert!(slices * piece <= SLOT);
            prop_assert!(piece.is_multiple_of(64));
            prop_assert!(chunks * piece >= longest);
            let covered: usize = (0..chunks).map(|chunk| part(longest, piece, chunk).1).sum();
            prop_assert_eq!(covered, longest);
        }
    }

    #[test]
    fn slices_of_one_owner_get_places_in_turn() {
        assert_eq!(places([0, 1, 0, 1, 0].into_iter(), 2), [0, 0, 1, 1, 2]);
    }
}
