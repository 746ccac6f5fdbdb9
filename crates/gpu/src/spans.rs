//! A batch as one long tensor, and pieces of it for kernels.
//!
//! Tensors begin at multiples of 16 bytes in it, so that a tensor which is aligned in memory is aligned in every buffer.

use std::ops::Range;

use ronde_cuda::Piece;

/// What tensors are aligned to.
pub(crate) const ALIGN: usize = 16;

/// A run of bytes in memory, and where it lies in the long tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) at: usize,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// Lays tensors, by address and length, one behind the other; gives the length of the whole.
pub(crate) fn lay_out(tensors: impl IntoIterator<Item = (u64, usize)>) -> (Vec<Span>, usize) {
    let mut end: usize = 0;
    let spans = tensors
        .into_iter()
        .map(|(address, bytes)| {
            let at = end;
            end = (at + bytes).next_multiple_of(ALIGN);
            Span { at, address, bytes }
        })
        .collect();
    (spans, end)
}

/// The parts of spans that lie in a range, which they are in the order of: where from its start, the address, the length.
pub(crate) fn within(spans: &[Span], range: Range<usize>) -> impl Iterator<Item = (usize, u64, usize)> + '_ {
    let first = spans.partition_point(|span| span.at + span.bytes <= range.start);
    spans[first..].iter().take_while(move |span| span.at < range.end).filter_map(move |span| {
        let start = span.at.max(range.start);
        let end = (span.at + span.bytes).min(range.end);
        (end > start).then(|| (start - range.start, span.address + (start - span.at) as u64, end - start))
    })
}

/// The range cut into so many parts of nearly one length, each of which begins at an aligned offset.
pub(crate) fn share(len: usize, parts: usize, part: usize) -> Range<usize> {
    let units = len.div_ceil(ALIGN);
    let cut = |part: usize| (units * part / parts * ALIGN).min(len);
    cut(part)..cut(part + 1)
}

/// A run from one place to another as work for a kernel, whose lengths count in units of so many bytes.
pub(crate) fn piece(from: u64, to: u64, bytes: usize, unit: usize) -> Piece {
    Piece { a: from, b: to, n: (bytes / unit) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_aligned_and_found_again_in_any_range() {
        let (spans, len) = lay_out([(1000, 20), (2000, 0), (3000, 16), (4000, 1)]);
        assert_eq!(spans.iter().map(|span| span.at).collect::<Vec<_>>(), [0, 32, 32, 48]);
        assert_eq!(len, 64);
        let found: Vec<_> = within(&spans, 16..49).collect();
        assert_eq!(found, [(0, 1016, 4), (16, 3000, 16), (32, 4000, 1)]);
        assert_eq!(within(&spans, 20..32).count(), 0);
    }

    #[test]
    fn shares_cover_everything_once_and_begin_aligned() {
        for len in [0, 1, 15, 16, 17, 1000, 4096] {
            for parts in 1..6 {
                let mut end = 0;
                for part in 0..parts {
                    let range = share(len, parts, part);
                    assert_eq!(range.start, end);
                    assert!(range.start.is_multiple_of(ALIGN) || range.start == len);
                    end = range.end;
                }
                assert_eq!(end, len);
            }
        }
    }
}
