//! A batch as one long tensor, and the parts of it that lie in memory.
//!
//! Tensors begin at multiples of 16 bytes in it, so that a tensor which is aligned in memory is aligned in every buffer. It
//! counts in bytes of the type that travels; a tensor whose elements are wider in memory takes more room there.

use std::ops::Range;

use ronde_collective::types::DType;
use ronde_engine::Tensor;

/// What tensors are aligned to.
pub(crate) const ALIGN: usize = 16;

/// That elements have one type in memory and travel in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cast {
    pub(crate) stored: DType,
    pub(crate) wire: DType,
}

/// A run of elements in memory, and where it lies in the long tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) at: usize,
    pub(crate) address: u64,
    /// As they travel.
    pub(crate) bytes: usize,
    /// `None`: in memory as they travel.
    pub(crate) cast: Option<Cast>,
}

impl Span {
    /// A run without a place yet, in memory as it travels.
    pub(crate) fn plain(address: u64, bytes: usize) -> Span {
        Span { at: 0, address, bytes, cast: None }
    }

    /// A whole tensor without a place yet, at one of its two addresses.
    pub(crate) fn of(tensor: &Tensor, address: u64) -> Span {
        let cast = tensor.stored.map(|stored| Cast { stored, wire: tensor.dtype });
        Span { cast, ..Span::plain(address, tensor.bytes()) }
    }

    /// The address of what lies so many bytes later in the long tensor.
    fn address_after(&self, bytes: usize) -> u64 {
        let there = match self.cast {
            Some(cast) => bytes / cast.wire.size() * cast.stored.size(),
            None => bytes,
        };
        self.address + there as u64
    }
}

/// Lays runs one behind the other; gives the length of the whole.
pub(crate) fn lay_out(runs: impl IntoIterator<Item = Span>) -> (Vec<Span>, usize) {
    let mut end: usize = 0;
    let spans = runs
        .into_iter()
        .map(|run| {
            let at = end;
            end = (at + run.bytes).next_multiple_of(ALIGN);
            Span { at, ..run }
        })
        .collect();
    (spans, end)
}

/// The parts of spans that lie in a range, which they are in the order of, placed from its start.
pub(crate) fn within(spans: &[Span], range: Range<usize>) -> impl Iterator<Item = Span> + '_ {
    let first = spans.partition_point(|span| span.at + span.bytes <= range.start);
    spans[first..].iter().take_while(move |span| span.at < range.end).filter_map(move |span| {
        let start = span.at.max(range.start);
        let end = (span.at + span.bytes).min(range.end);
        (end > start).then(|| Span {
            at: start - range.start,
            address: span.address_after(start - span.at),
            bytes: end - start,
            cast: span.cast,
        })
    })
}

/// The range cut into so many parts of nearly one length, each of which begins at an aligned offset.
pub(crate) fn share(len: usize, parts: usize, part: usize) -> Range<usize> {
    let units = len.div_ceil(ALIGN);
    let cut = |part: usize| (units * part / parts * ALIGN).min(len);
    cut(part)..cut(part + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_aligned_and_found_again_in_any_range() {
        let runs = [(1000, 20), (2000, 0), (3000, 16), (4000, 1)];
        let (spans, len) = lay_out(runs.map(|(address, bytes)| Span::plain(address, bytes)));
        assert_eq!(spans.iter().map(|span| span.at).collect::<Vec<_>>(), [0, 32, 32, 48]);
        assert_eq!(len, 64);
        let found: Vec<_> = within(&spans, 16..49).map(|span| (span.at, span.address, span.bytes)).collect();
        assert_eq!(found, [(0, 1016, 4), (16, 3000, 16), (32, 4000, 1)]);
        assert_eq!(within(&spans, 20..32).count(), 0);
    }

    #[test]
    fn elements_that_are_wider_in_memory_are_found_there() {
        let cast = Some(Cast { stored: DType::F64, wire: DType::F16 });
        let (spans, len) = lay_out([Span::plain(1000, 20), Span { cast, ..Span::plain(4096, 64) }]);
        assert_eq!(len, 96);
        let found: Vec<_> = within(&spans, 48..64).collect();
        assert_eq!(found, [Span { at: 0, address: 4096 + 64, bytes: 16, cast }]);
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
