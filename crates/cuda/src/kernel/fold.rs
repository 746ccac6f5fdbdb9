//! `ronde_fold_…`: folds the same stretch of several sources into one result.
//!
//! A thread loads its vectors of all sources before it computes with any, so that enough of memory is on its way at
//! once, and stores each result as soon as it is there. With many sources it takes fewer vectors a round: what counts is
//! how much is being loaded, and registers hold no more than that. A thread has read all it needs of an element before
//! it writes that element, so the result may lie where a source is. Where the result is stored in a wider type, a vector
//! is as long as 16 bytes of that, and loads are that much shorter.

use ronde_collective::kernel::Fold;
use ronde_collective::types::DType;

use super::element::{Arithmetic, Terms, Value};
use super::float::Precision;
use super::lanes::{self, Words};
use super::sweep::{self, Body, Piece, Vector};
use super::writer::{Param, Reg, Width, Writer};

/// Vectors that a thread loads at once, if there are no more sources than that; four words each, they take half of its
/// registers. Factors and divisors want the rest of them, so with those it loads half as many.
const IN_FLIGHT: usize = 8;

/// Vectors of the result that a thread makes in one round, at most.
const MOST_UNROLL: usize = 4;

/// The entry, written on this page from top to bottom.
struct FoldKernel {
    dtype: DType,
    to: DType,
    fold: Fold,
    /// Units of a vector.
    lanes: usize,
    arithmetic: Arithmetic,
    bases: Vec<Param>,
    terms: Option<Terms>,
    piece: Piece,
}

pub(super) fn write(dtype: DType, to: DType, fold: Fold, sources: usize, scaled: bool) -> Writer {
    // With more sources than usual a thread needs more registers, and fewer threads keep memory as busy.
    let mut writer = Writer::new(if sources > IN_FLIGHT { 2 } else { 4 });
    let w = &mut writer;
    let arithmetic = Arithmetic::new(dtype, scaled);
    let table = w.param("u64");
    let bases = (0..sources).map(|_| w.param("u64")).collect();
    let terms = scaled.then(|| ["f64", "f64", "u64"].map(|kind| w.param(kind)));
    let terms = terms.map(|params| arithmetic.terms(w, params));
    let piece = Piece::read(w, table);
    let lanes = (arithmetic.vector_bytes() / dtype.size()).min(16 / to.size());
    let kernel = FoldKernel { dtype, to, fold, lanes, arithmetic, bases, terms, piece };

    let body = Body::find(w, piece.n, lanes, (piece.b, to.size()), |w| {
        (0..sources).map(|source| (kernel.source(w, source, piece.a), dtype.size())).collect()
    });
    body.each_vector(w, kernel.unroll(), |w, at, vectors| kernel.round(w, at, vectors));
    body.each_other(w, piece.n, |w, at| kernel.single(w, at));
    writer
}

impl FoldKernel {
    /// Where a source is, `offset` bytes in.
    fn source(&self, w: &mut Writer, source: usize, offset: Reg) -> Reg {
        let base = w.read(self.bases[source]);
        w.make(Width::B64, "add.u64", &[&base, &offset])
    }

    /// Vectors of the result a round.
    fn unroll(&self) -> usize {
        let in_flight = if self.terms.is_some() { IN_FLIGHT / 2 } else { IN_FLIGHT };
        (in_flight / self.bases.len()).clamp(1, MOST_UNROLL)
    }

    /// One round of a thread.
    fn round(&self, w: &mut Writer, at: Reg, vectors: &[Vector]) {
        let (size, bytes) = (self.dtype.size(), self.lanes * self.dtype.size());
        let offset = sweep::address(w, self.piece.a, at, size);
        let to = sweep::address(w, self.piece.b, at, self.to.size());
        let loaded: Vec<Vec<Words>> = (0..self.bases.len())
            .map(|source| {
                let from = self.source(w, source, offset);
                let load = |vector: &Vector| Words::load(w, vector.only, bytes, from, vector.later * size);
                vectors.iter().map(load).collect()
            })
            .collect();
        for (turn, vector) in vectors.iter().enumerate() {
            let mut results = Vec::new();
            for words in &loaded {
                let elements = words[turn].elements(w, self.arithmetic.lane());
                self.take(w, &mut results, &elements);
            }
            let elements = self.finish(w, &mut results);
            let words = Words::of(w, self.stored_lane(), &elements);
            words.store(w, vector.only, to, vector.later * self.to.size());
        }
    }

    /// One element outside of the body.
    fn single(&self, w: &mut Writer, at: Reg) {
        let offset = sweep::address(w, self.piece.a, at, self.dtype.size());
        let to = sweep::address(w, self.piece.b, at, self.to.size());
        let mut result = Vec::new();
        for source in 0..self.bases.len() {
            let from = self.source(w, source, offset);
            let element = lanes::load(w, self.dtype, from);
            self.take(w, &mut result, &[element]);
        }
        for element in self.finish(w, &mut result) {
            lanes::store(w, self.to, to, element);
        }
    }

    /// Folds elements of the next source into the results so far, which are none before the first.
    fn take(&self, w: &mut Writer, results: &mut Vec<Value>, elements: &[Reg]) {
        let mut values: Vec<Value> =
            elements.iter().map(|&stored| self.arithmetic.widen(w, stored)).collect();
        if let Some(terms) = &self.terms {
            self.arithmetic.prescale(w, terms, &mut values);
        }
        if results.is_empty() {
            *results = values;
            return;
        }
        for (result, value) in results.iter_mut().zip(values) {
            *result = self.arithmetic.fold(w, self.fold, *result, value);
        }
    }

    /// The results as elements.
    fn finish(&self, w: &mut Writer, results: &mut [Value]) -> Vec<Reg> {
        if let Some(terms) = &self.terms {
            self.arithmetic.finish(w, self.fold, terms, results);
        }
        let rounded: Vec<Reg> = results.iter().map(|&value| self.arithmetic.round(w, value)).collect();
        if self.to == self.dtype {
            return rounded;
        }
        let precision = Precision::of(self.to);
        let widened = |element: &Reg| {
            let number = precision.widen(w, self.dtype, *element);
            // Exact, but for the bits of a NaN.
            precision.round(w, self.to, number)
        };
        rounded.iter().map(widened).collect()
    }

    /// What a vector of results is put together from.
    fn stored_lane(&self) -> DType {
        if self.to == self.dtype { self.arithmetic.lane() } else { self.to }
    }
}
