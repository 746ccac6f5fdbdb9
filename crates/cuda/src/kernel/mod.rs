//! Our kernels, as PTX text that is made here and compiled by the driver for the GPU it finds.
//!
//! No compiler of CUDA is needed, by us or by users: the text asks for no more than Pascal and PTX 6.4 have, and every
//! driver of the last years compiles it for whatever GPU is there. Each kernel is a module of its own with one entry, so
//! that a process compiles only what it uses.
//!
//! # How a kernel is launched
//! A kernel takes the address of a table of [`Piece`]s, then its own parameters, and is launched with one block of
//! [`THREADS`] threads a piece. [`Kernel::divide`] makes pieces of a batch of tensors, so that however many there are,
//! and however unequal, one launch does them all and every multiprocessor has its share.
//!
//! | Kernel | Parameters after the table | What it does to a piece |
//! |---|---|---|
//! | [`Move`](Kernel::Move) | | copies `n` bytes from `a` to `b`, at any alignment; they may be the same place |
//! | [`Fill`](Kernel::Fill) | pattern: `u64` | repeats the 8 bytes of the pattern over `n` bytes at `b` |
//! | [`Convert`](Kernel::Convert) | factor: `f64` | `n` elements at `a` as elements of another type at `b`, there times the factor |
//! | [`Fold`](Kernel::Fold) | the base of each source: `u64` | folds the `n` elements that lie `a` bytes after each base, into `b` |
//! | `Fold`, scaled | the same, then prescale: `f64`, postscale: `f64`, divide: `u64` | `postscale * (fold(prescale * source, …) / divide)` |
//! | `Fold`, to a wider type | as above | the same, and stores the result, rounded to the sources' type, as elements of a wider one |
//!
//! Elements lie at multiples of their size. The result of a fold may lie exactly where one of its sources does, if it is of their type. A divisor
//! applies to sums only, 1 is none, and it is at most `i64::MAX`. A scaled fold of integers runs wide and saturates, even
//! if none of its terms changes anything.
//!
//! # The same bits as on the CPU
//! The rules are those of [`ronde_collective::kernel`], to the bit, so a result does not depend on where it was computed.
//!
//! # How it is laid out
//! `writer` knows the form of PTX. `sweep` is the walk over a piece, `lanes` are elements in memory, `float` and
//! `integer` are arithmetic, `element` chooses between them. `copy`, `convert` and `fold` are the kernels. Memory is the
//! limit of them all: a thread moves 16 bytes at a time with several on their way, and everything else has only to be
//! quick enough not to show.

mod convert;
mod copy;
mod element;
mod float;
mod fold;
mod integer;
mod lanes;
mod sweep;
mod writer;

use ronde_collective::kernel::Fold;
use ronde_collective::types::DType;

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Sources that one fold takes, at most.
pub const MOST_SOURCES: usize = 16;

/// What one block does: an entry of a kernel's table. What the numbers mean is said for each kernel in
/// [the table above](self).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where to read: an address, or the offset from each source's base.
    pub a: u64,
    /// Where to write: an address.
    pub b: u64,
    /// How many bytes, or elements.
    pub n: u64,
}

/// One of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Copies bytes.
    Move,
    /// Repeats a pattern.
    Fill,
    /// Makes floats of one type from floats of another, and scales those.
    Convert {
        /// The type at `a`.
        from: DType,
        /// The type at `b`.
        to: DType,
    },
    /// Folds elements of several sources.
    Fold {
        /// The type of the elements that are folded, and that the result is rounded to.
        dtype: DType,
        /// The type that the result is stored in: the same, or a wider float.
        to: DType,
        /// What is done to them.
        fold: Fold,
        /// How many there are, from 1 to [`MOST_SOURCES`].
        sources: usize,
        /// Whether there are factors and a divisor.
        scaled: bool,
    },
}

/// A piece has at least this many bytes, if its span has.
const LEAST_BYTES: u64 = 4 << 10;

/// A piece has at most this many bytes. Larger ones were slower on an H200: too few run at a time towards the end.
const MOST_BYTES: u64 = 64 << 10;

/// What the pieces of a large batch are aimed at, for each multiprocessor. Eight blocks run on one at a time; four times
/// as many leave it little to wait for at the end.
const PIECES_PER_MULTIPROCESSOR: u64 = 32;

/// All pieces are multiples of this many units, which is at least one vector of every kernel. So where a span begins
/// aligned all of its pieces do, and all begin with a whole pattern.
const UNITS: u64 = 16;

impl Kernel {
    /// Every kernel there is, with folds of these numbers of sources.
    pub fn every(sources: &[usize]) -> Vec<Kernel> {
        let floats = || DType::ALL.into_iter().filter(|dtype| dtype.is_float());
        let mut kernels = vec![Kernel::Move, Kernel::Fill];
        kernels.extend(floats().flat_map(|from| floats().map(move |to| Kernel::Convert { from, to })));
        for dtype in DType::ALL {
            for fold in [Fold::Sum, Fold::Min, Fold::Max, Fold::Product] {
                for to in DType::ALL.into_iter().filter(|&to| to == dtype || widens(dtype, to)) {
                    for &sources in sources {
                        for scaled in [false, true] {
                            kernels.push(Kernel::Fold { dtype, to, fold, sources, scaled });
                        }
                    }
                }
            }
        }
        kernels
    }

    /// The name of the entry in the module.
    pub fn entry(&self) -> String {
        match self {
            Kernel::Move => "ronde_move".into(),
            Kernel::Fill => "ronde_fill".into(),
            Kernel::Convert { from, to } => format!("ronde_convert_{from}_{to}"),
            Kernel::Fold { dtype, to, fold, sources, scaled } => {
                let scaled = if *scaled { "_scaled" } else { "" };
                let to = if to == dtype { String::new() } else { format!("_to_{to}") };
                format!("ronde_fold_{dtype}_{fold}_{sources}{scaled}{to}")
            }
        }
    }

    /// The text of the module.
    ///
    /// # Panics
    /// If a conversion has a type that is no float, or a fold has no source, more than [`MOST_SOURCES`], or a result of another
    /// type that is not wider.
    pub fn source(&self) -> String {
        let writer = match *self {
            Kernel::Move => copy::write_move(),
            Kernel::Fill => copy::write_fill(),
            Kernel::Convert { from, to } => {
                assert!(from.is_float() && to.is_float(), "{from} and {to} are not both floats");
                convert::write(from, to)
            }
            Kernel::Fold { dtype, to, fold, sources, scaled } => {
                assert!(to == dtype || widens(dtype, to), "{to} is not a wider float than {dtype}");
                assert!(
                    (1..=MOST_SOURCES).contains(&sources),
                    "a fold has 1 to {MOST_SOURCES} sources, not {sources}"
                );
                fold::write(dtype, to, fold, sources, scaled)
            }
        };
        writer.module(&self.entry())
    }

    /// Bytes that `a` and `b` move on by with each unit of `n`.
    fn strides(&self) -> (u64, u64) {
        match self {
            Kernel::Move => (1, 1),
            Kernel::Fill => (0, 1),
            Kernel::Convert { from, to } => (from.size() as u64, to.size() as u64),
            Kernel::Fold { dtype, to, .. } => (dtype.size() as u64, to.size() as u64),
        }
    }

    /// Cuts spans, which are pieces of any length, into pieces of a good size for a GPU with this many multiprocessors.
    /// Empty spans vanish; pieces come in the order of the spans.
    pub fn divide(&self, spans: &[Piece], multiprocessors: u32) -> Vec<Piece> {
        let (a_stride, b_stride) = self.strides();
        let widest = a_stride.max(b_stride);
        let bytes: u64 = spans.iter().map(|span| span.n * widest).sum();
        let aim = bytes / (u64::from(multiprocessors.max(1)) * PIECES_PER_MULTIPROCESSOR);
        let units = (aim.clamp(LEAST_BYTES, MOST_BYTES) / widest).next_multiple_of(UNITS);
        let mut pieces = Vec::new();
        for span in spans {
            let mut done = 0;
            while done < span.n {
                let n = units.min(span.n - done);
                pieces.push(Piece { a: span.a + done * a_stride, b: span.b + done * b_stride, n });
                done += n;
            }
        }
        pieces
    }
}

/// Whether every float of one type is one of another, larger type.
fn widens(from: DType, to: DType) -> bool {
    from.is_float() && to.is_float() && from.size() < to.size()
}

#[cfg(test)]
mod tests;
