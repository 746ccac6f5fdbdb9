//! `ronde_convert_…`: floats of one type as floats of another, which are then scaled.
//!
//! An element is rounded to the other type, with the bits of a framework's cast; and then the product with the factor is,
//! as if a second kernel had scaled what this one has made. The product is computed in `float64` if the other type is
//! that, otherwise in `float32`, to which the factor is then rounded first. A vector holds as many elements as fill 16
//! bytes of the wider type, and is that much shorter on the side of the narrower one.

use ronde_collective::types::DType;

use super::float::Precision;
use super::lanes::{self, Words};
use super::sweep::{self, Body, Piece};
use super::writer::{Reg, Writer};

/// Vectors that a thread converts in one round.
const UNROLL: usize = 4;

pub(super) fn write(from: DType, to: DType) -> Writer {
    let mut writer = Writer::new(4);
    let w = &mut writer;
    let table = w.param("u64");
    let factor = w.param("f64");
    let precision = Precision::of(to);
    let factor = w.read(factor);
    let factor = precision.factor(w, factor);
    let piece = Piece::read(w, table);
    let is_exact = from == to || super::widens(from, to);
    let convert = |w: &mut Writer, stored: Reg| {
        let number = if is_exact {
            precision.widen(w, from, stored)
        } else {
            let wide = Precision::of(from).widen(w, from, stored);
            let rounded = Precision::of(from).round(w, to, wide);
            precision.widen(w, to, rounded)
        };
        let product = precision.multiply(w, number, factor);
        precision.round(w, to, product)
    };

    let lanes = 16 / from.size().max(to.size());
    let body = Body::find(w, piece.n, lanes, (piece.b, to.size()), |_| vec![(piece.a, from.size())]);
    body.each_vector(w, UNROLL, |w, at, vectors| {
        let source = sweep::address(w, piece.a, at, from.size());
        let target = sweep::address(w, piece.b, at, to.size());
        let loaded: Vec<Words> = vectors
            .iter()
            .map(|vector| {
                Words::load(w, vector.only, lanes * from.size(), source, vector.later * from.size())
            })
            .collect();
        for (vector, words) in vectors.iter().zip(loaded) {
            let elements: Vec<Reg> =
                words.elements(w, from).into_iter().map(|stored| convert(w, stored)).collect();
            Words::of(w, to, &elements).store(w, vector.only, target, vector.later * to.size());
        }
    });
    body.each_other(w, piece.n, |w, at| {
        let source = sweep::address(w, piece.a, at, from.size());
        let target = sweep::address(w, piece.b, at, to.size());
        let stored = lanes::load(w, from, source);
        let element = convert(w, stored);
        lanes::store(w, to, target, element);
    });
    writer
}
