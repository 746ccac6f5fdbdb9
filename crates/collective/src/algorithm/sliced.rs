//! Sliced reduction over shared segments: allreduce and reduce-scatter in one host.
//!
//! The tensor, which may be a batch of many ([`Extents`]), is cut into slices, each owned by one rank. Chunk by chunk,
//! every rank copies what others own into its input slot, folds the slices it owns over all input slots (its own part
//! straight from private memory, in member order, so bits depend neither on who folds nor on when), and copies what
//! others folded out of their result slots. Where its own part is a crowd of short pieces, it goes by way of the slots too.
//!
//! Steps: 2 meetings a chunk, hidden behind the next chunk's copy. Bytes for a tensor of S over n ranks, a rank:
//! private memory is read once and written once (S each, the floor); shared memory, which stays in cache, is
//! written S·(n-1)/n + S/n and read S·(n-1)/n twice.

use super::extents::{Extents, Piece};
use super::{split, table};
use crate::error::Result;
use crate::host::{Host, Work};
use crate::kernel::{FoldPlan, Stage, copy, fold};

/// Shorter pieces of a batch are folded together, by way of the slots.
const SHORT: usize = 256;
/// The same where results go past the caches, which takes a fence each time.
const SHORT_STREAMED: usize = 16 << 10;

/// A range of the tensor with one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    /// Where it begins, in bytes.
    pub(super) start: usize,
    /// In bytes.
    pub(super) len: usize,
    /// Position in the host.
    pub(super) owner: usize,
}

/// The work of one pass; see the module's text.
struct Sliced<'a, const GATHER: bool> {
    extents: &'a Extents<'a>,
    slices: &'a [Slice],
    /// Position of each slice among those of its owner.
    places: Vec<usize>,
    me: usize,
    plan: &'a FoldPlan,
    stage: Stage,
    /// Bytes of each slice in one chunk.
    piece: usize,
    sources: Vec<*const u8>,
}

/// Reduces `slices` of a tensor on the host: every target that is not null receives the result (`gather`), or only those
/// in slices this rank owns. `meanwhile` is called once a chunk.
#[expect(clippy::too_many_arguments, reason = "the parts of a reduction")]
pub(super) fn reduce(
    host: &mut Host,
    me: usize,
    extents: &Extents<'_>,
    slices: &[Slice],
    plan: &FoldPlan,
    stage: Stage,
    gather: bool,
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let longest = slices.iter().map(|slice| slice.len).max().unwrap_or(0);
    let (piece, chunks) = pieces(host.members(), slices.len(), longest);
    let places = places(slices.iter().map(|slice| slice.owner), host.members());
    let sources = Vec::with_capacity(host.members());
    if gather {
        let mut work = Sliced::<true> { extents, slices, places, me, plan, stage, piece, sources };
        host.stream(chunks, &mut work, meanwhile)
    } else {
        let mut work = Sliced::<false> { extents, slices, places, me, plan, stage, piece, sources };
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
            // SAFETY: the slot holds one piece for each slice; sources are readable for their runs.
            unsafe { self.extents.pack(slice.start + start, len, slot.add(index * self.piece), stream) };
            filled += len;
        }
        filled
    }

    fn fold(&mut self, chunk: usize, inputs: &[*const u8], result: *mut u8, stream: bool) {
        let (extents, slices, me) = (self.extents, self.slices, self.me);
        for (index, slice) in slices.iter().enumerate().filter(|(_, slice)| slice.owner == me) {
            let (start, len) = part(slice.len, self.piece, chunk);
            let at = Place {
                inputs,
                // SAFETY: the result slot holds one piece for each slice owned.
                result: unsafe { result.add(self.places[index] * self.piece) },
                offset: index * self.piece,
                start: slice.start + start,
                stream,
            };
            let short = if stream { SHORT_STREAMED } else { SHORT };
            let mut folded = 0;
            for piece in extents.pieces(at.start, len) {
                if !piece.source.is_null() && (piece.len >= short || piece.len == len) {
                    self.fold_packed(&at, folded, piece.at);
                    self.fold_straight(&at, piece);
                    folded = piece.at + piece.len;
                }
            }
            self.fold_packed(&at, folded, len);
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

/// Where this rank folds its piece of a slice.
struct Place<'a> {
    inputs: &'a [*const u8],
    /// Where others look for the result.
    result: *mut u8,
    /// Where in every input slot the piece begins, and where in the tensor.
    offset: usize,
    start: usize,
    stream: bool,
}

impl<const GATHER: bool> Sliced<'_, GATHER> {
    /// Folds a piece that lies in one go from and to private memory.
    fn fold_straight(&mut self, at: &Place<'_>, piece: Piece) {
        if piece.target.is_null() && !GATHER {
            return;
        }
        self.look_at(at, piece.at);
        self.sources[self.me] = piece.source;
        let stage = Stage { stream: at.stream && GATHER, ..self.stage };
        // SAFETY: every source holds `piece.len` bytes that nobody writes before this rank has posted the fold; the
        // result slot is read by others only after that.
        unsafe {
            let published = at.result.add(piece.at);
            // Past the caches goes what is named first, which then must be the slot.
            let (to, also) = match (piece.target.is_null(), GATHER, stage.stream) {
                (true, _, _) => (published, None),
                (false, false, _) => (piece.target, None),
                (false, true, false) => (piece.target, Some(published)),
                (false, true, true) => (published, Some(piece.target)),
            };
            fold(self.plan, stage, to, also, &self.sources, piece.len / self.plan.dtype().size());
        }
    }

    /// Folds bytes `from` to `to` of the piece by way of the own input slot, which has room for them that nobody reads:
    /// one fold and short copies cost less than many short folds. Also where there is no data to fold straight from.
    fn fold_packed(&mut self, at: &Place<'_>, from: usize, to: usize) {
        let len = to - from;
        if len == 0 {
            return;
        }
        self.look_at(at, from);
        let own = self.sources[self.me].cast_mut();
        // What was written past the caches would have to be read back from memory, so that is done last.
        let result = if GATHER && !at.stream { at.result.wrapping_add(from) } else { own };
        // SAFETY: as above; a fold may replace one of its sources.
        unsafe {
            self.extents.pack(at.start + from, len, own, false);
            fold(self.plan, self.stage, result, None, &self.sources, len / self.plan.dtype().size());
            self.extents.unpack(at.start + from, len, result);
            if GATHER && at.stream {
                copy(at.result.add(from), own, len, true);
            }
        }
    }

    /// Lists where all input slots have what is `from` bytes into the piece.
    fn look_at(&mut self, at: &Place<'_>, from: usize) {
        self.sources.clear();
        // SAFETY: stays within a slot.
        self.sources.extend(at.inputs.iter().map(|input| unsafe { input.add(at.offset + from) }));
    }
}

/// Cuts a tensor of `len` bytes into `count` slices, dealt to `owners` ranks in turn.
pub(super) fn cut(len: usize, element: usize, count: usize, owners: usize) -> Vec<Slice> {
    const PAGE: usize = 4096;
    let align = if len >= count * PAGE { PAGE / element } else { 64 / element };
    split(len / element, count, align)
        .into_iter()
        .enumerate()
        .map(|(index, (start, count))| Slice {
            start: start * element,
            len: count * element,
            owner: index % owners,
        })
        .collect()
}

/// One slice after the other, of these lengths in bytes; `owner` says whose each is.
pub(super) fn one_each(lengths: &[usize], owner: impl Fn(usize) -> usize) -> Vec<Slice> {
    let mut next = 0;
    lengths
        .iter()
        .enumerate()
        .map(|(index, &len)| {
            let start = next;
            next += len;
            Slice { start, len, owner: owner(index) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::WHOLE;
    use super::super::extents::lay;
    use super::*;
    use crate::host::SLOT;
    use crate::kernel::{Fold, Identity};
    use crate::types::DType;
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
    fn slices_lie_one_behind_the_other_and_owners_are_dealt_in_turn() {
        let slices = cut(100_000, 4, 3, 2);
        assert_eq!(slices.iter().map(|slice| slice.owner).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(slices[1].start, slices[0].len);
        assert_eq!(slices[2].start + slices[2].len, 100_000);
        assert!(slices.iter().all(|slice| slice.start.is_multiple_of(4096)), "{slices:?}");
        let shares = one_each(&[8, 0, 4], |index| index);
        assert_eq!(shares[2], Slice { start: 8, len: 4, owner: 2 });
    }

    #[test]
    fn slices_of_one_owner_get_places_in_turn() {
        assert_eq!(places([0, 1, 0, 1, 0].into_iter(), 2), [0, 0, 1, 1, 2]);
    }

    /// One rank of a stream in which all take turns in one thread.
    struct Seat {
        sources: Vec<Vec<u8>>,
        targets: Vec<Vec<u8>>,
        input: Vec<u8>,
        result: Vec<u8>,
    }

    /// Sums a batch of bytes over three ranks, of which the last has no data, chunk by chunk as a host would.
    fn summed<const GATHER: bool>(lengths: &[usize], stream: bool) -> Vec<Vec<u8>> {
        let plan = FoldPlan::new(DType::U8, Fold::Sum, 1.0, 1.0, None).expect("a plain sum");
        let (ranks, absent, total) = (3, 2, lengths.iter().sum());
        let slices = cut(total, 1, ranks, ranks);
        let (piece, chunks) = pieces(ranks, ranks, slices[0].len);
        let mut seats: Vec<Seat> = (0..ranks)
            .map(|rank| Seat {
                sources: lengths
                    .iter()
                    .map(|&len| (0..len).map(|at| (at * 3 + rank) as u8).collect())
                    .collect(),
                targets: lengths.iter().map(|&len| vec![0xAA; len]).collect(),
                input: vec![0; SLOT],
                result: vec![0; SLOT],
            })
            .collect();
        let runs: Vec<_> = (0..ranks)
            .map(|rank| {
                let Seat { sources, targets, .. } = &mut seats[rank];
                lay(sources.iter().zip(targets).map(|(source, target)| {
                    let source = if rank == absent { std::ptr::null() } else { source.as_ptr() };
                    (source, target.as_mut_ptr(), target.len())
                }))
            })
            .collect();
        let inputs: Vec<*mut u8> = seats.iter_mut().map(|seat| seat.input.as_mut_ptr()).collect();
        let results: Vec<*mut u8> = seats.iter_mut().map(|seat| seat.result.as_mut_ptr()).collect();
        let read = |slots: &[*mut u8]| slots.iter().map(|slot| slot.cast_const()).collect::<Vec<_>>();
        let extents: Vec<Extents<'_>> = runs.iter().map(|runs| Extents::new(runs, &Identity::ZERO)).collect();
        let mut works: Vec<Sliced<'_, GATHER>> = (0..ranks)
            .map(|me| Sliced {
                extents: &extents[me],
                slices: &slices,
                places: vec![0; ranks],
                me,
                plan: &plan,
                stage: WHOLE,
                piece,
                sources: Vec::new(),
            })
            .collect();
        for chunk in 0..chunks {
            for (work, &slot) in works.iter_mut().zip(&inputs) {
                work.fill(chunk, slot, stream);
            }
            for (work, &result) in works.iter_mut().zip(&results) {
                work.fold(chunk, &read(&inputs), result, stream);
            }
            for work in works.iter_mut().filter(|_| GATHER) {
                work.take(chunk, &read(&results));
            }
        }
        seats.iter().map(|seat| seat.targets.concat()).collect()
    }

    /// Short, middling and long pieces, in and out of order, over several chunks.
    fn crowd() -> Vec<usize> {
        let short = (0..400).map(|number| number % 90);
        short.clone().chain([70_000, 300, 5_000, 20_001, 255, 257]).chain(short).chain([300_000, 7]).collect()
    }

    #[test]
    fn pieces_of_any_length_add_up_whether_or_not_slots_are_written_past_the_caches() {
        let lengths = crowd();
        let sum = |at: usize| ((at * 3) as u8).wrapping_add((at * 3 + 1) as u8);
        let wanted: Vec<u8> = lengths.iter().flat_map(|&len| (0..len).map(sum)).collect();
        for stream in [false, true] {
            for (rank, got) in summed::<true>(&lengths, stream).into_iter().enumerate() {
                assert!(got == wanted, "rank {rank}, stream {stream}");
            }
            let slices = cut(wanted.len(), 1, 3, 3);
            for (rank, got) in summed::<false>(&lengths, stream).into_iter().enumerate() {
                let own = slices[rank].start..slices[rank].start + slices[rank].len;
                assert!(got[own.clone()] == wanted[own.clone()], "share of rank {rank}, stream {stream}");
                assert!(got[..own.start].iter().chain(&got[own.end..]).all(|&byte| byte == 0xAA));
            }
        }
    }
}
