//! Where the bytes of an operation lie.
//!
//! To the algorithms in a host a batch of tensors is one long virtual tensor. It is cut into slices and chunks by position
//! alone, so all ranks cut alike; only when bytes are copied or folded does it matter that the tensors lie in memory apart.
//! [`Extents`] answers that one question: which pieces of memory, in order, make up a range of the virtual tensor. A
//! single tensor is the case of one run, in which every range is one piece.
//!
//! A run may lack a source (this rank has no data: the identity of the reduction stands in) or a target (this rank does not
//! want the result). Positions are found by binary search, once a range; a range is a chunk's piece of a slice, so the search
//! is small beside the copy that follows.

use std::mem::MaybeUninit;

use crate::kernel::{Identity, copy};

/// Bytes of short pieces that are gathered before they are written.
const BLOCK: usize = 16 << 10;
/// Pieces from this length on are written directly.
const LONG: usize = 256;
/// The same where writing passes the caches, which takes a fence each time.
const LONG_STREAMED: usize = 8 << 10;

/// A part of the virtual tensor that lies in memory in one go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// This rank's input for it; null if it has none.
    source: *const u8,
    /// Where the result goes; null if this rank does not want it.
    target: *mut u8,
    /// In bytes, never zero in a list made by [`lay`].
    len: usize,
    /// Where in the virtual tensor it begins.
    start: usize,
}

impl Run {
    /// The only run of a tensor that lies in one go.
    pub(crate) fn whole(source: *const u8, target: *mut u8, len: usize) -> Run {
        Run { source, target, len, start: 0 }
    }
}

/// Lays `(source, target, length)`s one behind the other. Empty ones leave no trace.
pub(crate) fn lay(places: impl Iterator<Item = (*const u8, *mut u8, usize)>) -> Vec<Run> {
    let mut start = 0;
    places
        .filter(|&(_, _, len)| len > 0)
        .map(|(source, target, len)| {
            let run = Run { source, target, len, start };
            start += len;
            run
        })
        .collect()
}

/// A virtual tensor: runs in order, without gaps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extents<'a> {
    runs: &'a [Run],
    absent: &'a Identity,
}

/// A piece of memory within the range asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) source: *const u8,
    pub(crate) target: *mut u8,
    /// Offset in the range.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl<'a> Extents<'a> {
    /// `absent` stands in for sources that are null.
    pub(crate) fn new(runs: &'a [Run], absent: &'a Identity) -> Extents<'a> {
        Extents { runs, absent }
    }

    /// Bytes of the virtual tensor.
    pub(crate) fn len(&self) -> usize {
        self.runs.last().map_or(0, |run| run.start + run.len)
    }

    /// The target, if the whole virtual tensor has one run.
    pub(crate) fn only_target(&self) -> Option<*mut u8> {
        if let [only] = self.runs { Some(only.target) } else { None }
    }

    /// The pieces that make up the `len` bytes from `start` on.
    #[inline]
    pub(crate) fn pieces(&self, start: usize, len: usize) -> Pieces<'a> {
        let first = match self.runs {
            [_] => 0,
            runs => runs.partition_point(|run| run.start + run.len <= start),
        };
        let runs = self.runs.get(first..).unwrap_or(&[]);
        Pieces { runs, start, next: start, end: start + len }
    }

    /// Copies a range from its sources to `to`, past the caches if `stream`.
    ///
    /// `to` is memory whose lines peers have read, so writing to it is slow, the more so in small bits. Short pieces are
    /// therefore gathered in a block that stays in the nearest cache, and written as one.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes and every source for its run, apart from each other.
    pub(crate) unsafe fn pack(&self, start: usize, len: usize, to: *mut u8, stream: bool) {
        let long = if stream { LONG_STREAMED } else { LONG };
        let mut block = MaybeUninit::<[u8; BLOCK]>::uninit();
        let block = block.as_mut_ptr().cast::<u8>();
        let mut gathered = 0;
        // SAFETY: passed on to the caller; pieces lie within the range, and what is gathered lies right before the next.
        unsafe {
            for piece in self.pieces(start, len) {
                let alone = piece.len >= long || piece.len == len;
                if alone || gathered + piece.len > BLOCK {
                    copy(to.add(piece.at - gathered), block, gathered, stream);
                    gathered = 0;
                }
                if alone {
                    self.read(&piece, to.add(piece.at), stream);
                } else {
                    self.read(&piece, block.add(gathered), false);
                    gathered += piece.len;
                }
            }
            copy(to.add(len - gathered), block, gathered, stream);
        }
    }

    /// Copies what this rank has of a piece.
    ///
    /// # Safety
    /// `to` must be valid for the piece's length and apart from its source.
    #[inline]
    unsafe fn read(&self, piece: &Piece, to: *mut u8, stream: bool) {
        // SAFETY: passed on to the caller.
        unsafe {
            if piece.source.is_null() {
                self.absent.fill(to, piece.len);
            } else {
                copy(to, piece.source, piece.len, stream);
            }
        }
    }

    /// Copies a range from `from` to its targets. Returns how many bytes were wanted.
    ///
    /// # Safety
    /// `from` must be valid for `len` bytes and every target for its run, apart from each other.
    pub(crate) unsafe fn unpack(&self, start: usize, len: usize, from: *const u8) -> usize {
        let mut taken = 0;
        for piece in self.pieces(start, len).filter(|piece| !piece.target.is_null()) {
            // SAFETY: passed on to the caller; pieces lie within the range.
            unsafe { copy(piece.target, from.add(piece.at), piece.len, false) };
            taken += piece.len;
        }
        taken
    }
}

/// Pieces of a range, in order.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    /// Those that may have something left of the range.
    runs: &'a [Run],
    start: usize,
    /// Where the next piece begins.
    next: usize,
    end: usize,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        if self.next >= self.end {
            return None;
        }
        let (run, rest) = self.runs.split_first()?;
        self.runs = rest;
        let within = self.next - run.start;
        let piece = Piece {
            source: if run.source.is_null() { run.source } else { run.source.wrapping_add(within) },
            target: if run.target.is_null() { run.target } else { run.target.wrapping_add(within) },
            at: self.next - self.start,
            len: (run.len - within).min(self.end - self.next),
        };
        self.next += piece.len;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Byte i of the virtual tensor is byte i of all sources put together, whatever range it is asked for with.
        #[test]
        fn pieces_of_any_range_are_the_bytes_of_that_range(
            lengths in prop::collection::vec(
                prop_oneof![4 => 0usize..50, 2 => 200usize..300, 1 => 8_000usize..17_000], 0..20
            ),
            from in 0usize..20_000,
            wanted in 0usize..60_000,
            stream: bool,
        ) {
            let tensors: Vec<Vec<u8>> = lengths
                .iter()
                .enumerate()
                .map(|(tensor, &len)| (0..len).map(|at| (tensor * 50 + at) as u8).collect())
                .collect();
            let all: Vec<u8> = tensors.concat();
            let start = from.min(all.len());
            let len = wanted.min(all.len() - start);
            let mut results: Vec<Vec<u8>> = lengths.iter().map(|&len| vec![0; len]).collect();
            let places = tensors.iter().zip(&mut results).map(|(tensor, result)| {
                (tensor.as_ptr(), result.as_mut_ptr(), tensor.len())
            });
            let runs = lay(places);
            let extents = Extents::new(&runs, &Identity::ZERO);
            prop_assert_eq!(extents.len(), all.len());

            let mut next = 0;
            for piece in extents.pieces(start, len) {
                prop_assert_eq!(piece.at, next);
                prop_assert!(piece.len > 0);
                next += piece.len;
            }
            prop_assert_eq!(next, len);

            let mut packed = vec![0xAA; len + 1];
            // SAFETY: runs and buffers are as long as they say.
            let taken = unsafe {
                extents.pack(start, len, packed.as_mut_ptr(), stream);
                extents.unpack(start, len, packed.as_ptr())
            };
            prop_assert_eq!(taken, len);
            prop_assert_eq!(packed[len], 0xAA);
            prop_assert_eq!(&packed[..len], &all[start..start + len]);
            let back = results.concat();
            prop_assert_eq!(&back[start..start + len], &packed[..len]);
            prop_assert!(back[..start].iter().chain(&back[start + len..]).all(|&byte| byte == 0));
        }
    }

    #[test]
    fn a_missing_source_reads_as_the_identity_and_a_missing_target_stays_out() {
        let (given, mut wanted) = ([1u8, 2, 3], [0u8; 2]);
        let runs =
            lay([(given.as_ptr(), std::ptr::null_mut(), 3), (std::ptr::null(), wanted.as_mut_ptr(), 2)]
                .into_iter());
        let extents = Extents::new(&runs, &Identity::ZERO);
        let mut packed = [9u8; 5];
        // SAFETY: runs and buffers are as long as they say.
        unsafe {
            extents.pack(0, 5, packed.as_mut_ptr(), false);
            assert_eq!(packed, [1, 2, 3, 0, 0]);
            assert_eq!(extents.unpack(1, 4, [5u8, 6, 7, 8].as_ptr()), 2);
        }
        assert_eq!(wanted, [7, 8]);
    }

    #[test]
    fn an_empty_tensor_has_no_pieces() {
        let extents = Extents::new(&[], &Identity::ZERO);
        assert_eq!((extents.len(), extents.pieces(0, 0).count()), (0, 0));
        let nothing = [Run::whole(std::ptr::null(), std::ptr::null_mut(), 0)];
        assert_eq!(Extents::new(&nothing, &Identity::ZERO).pieces(0, 0).count(), 0);
    }
}
