//! `ronde_move` and `ronde_fill`: bytes from one place to another, and one pattern over many.
//!
//! A move takes the widest vectors at which both addresses can be aligned, from 16 bytes down to single ones: there is
//! one loop for each width, and a piece runs one of them. Bytes before the first and after the last vector go one by one.

use ronde_collective::types::DType;

use super::lanes::{self, Words};
use super::sweep::{self, Body, Piece};
use super::writer::{Width, Writer};

/// Vectors that a thread moves in one round.
const UNROLL: usize = 4;

pub(super) fn write_move() -> Writer {
    let mut writer = Writer::new(4);
    let w = &mut writer;
    let table = w.param("u64");
    let piece = Piece::read(w, table);
    let apart = w.make(Width::B64, "xor.b64", &[&piece.a, &piece.b]);
    let finished = w.label();
    for width in [16usize, 8, 4, 2] {
        let astray = w.make(Width::B64, "and.b64", &[&apart, &(width - 1)]);
        let astray = w.test("ne.u64", &astray, &0);
        w.unless(astray, |w| {
            let body = Body::find(w, piece.n, width, (piece.b, 1), |_| Vec::new());
            body.each_vector(w, UNROLL, |w, at, vectors| {
                let from = sweep::address(w, piece.a, at, 1);
                let to = sweep::address(w, piece.b, at, 1);
                let loaded: Vec<Words> = vectors
                    .iter()
                    .map(|vector| Words::load(w, vector.only, width, from, vector.later))
                    .collect();
                for (vector, words) in vectors.iter().zip(loaded) {
                    words.store(w, vector.only, to, vector.later);
                }
            });
            move_bytes(w, piece, &body);
            w.branch(finished);
        });
    }
    move_bytes(w, piece, &Body::empty(piece.n));
    w.place(finished);
    writer
}

fn move_bytes(w: &mut Writer, piece: Piece, body: &Body) {
    body.each_other(w, piece.n, |w, at| {
        let from = sweep::address(w, piece.a, at, 1);
        let to = sweep::address(w, piece.b, at, 1);
        let byte = lanes::load(w, DType::U8, from);
        lanes::store(w, DType::U8, to, byte);
    });
}

/// The pattern begins at the first byte of a span. A piece begins a multiple of its length later, so for the piece that
/// is so as well, and at an aligned address it is turned by as many bytes as come before.
pub(super) fn write_fill() -> Writer {
    const LANES: usize = 16;
    let mut writer = Writer::new(4);
    let w = &mut writer;
    let table = w.param("u64");
    let pattern = w.param("u64");
    let piece = Piece::read(w, table);
    let pattern = w.read(pattern);
    let turned = |w: &mut Writer, by: &dyn std::fmt::Display| {
        let bytes = w.make(Width::B64, "and.b64", &[by, &7]);
        let bits = w.make(Width::B32, "cvt.u32.u64", &[&bytes]);
        let bits = w.make(Width::B32, "shl.b32", &[&bits, &3]);
        let rest = w.make(Width::B32, "sub.u32", &[&64, &bits]);
        let low = w.make(Width::B64, "shr.u64", &[&pattern, &bits]);
        let high = w.make(Width::B64, "shl.b64", &[&pattern, &rest]);
        w.make(Width::B64, "or.b64", &[&low, &high])
    };

    let head = w.make(Width::B64, "neg.s64", &[&piece.b]);
    let aligned = turned(w, &head);
    let body = Body::find(w, piece.n, LANES, (piece.b, 1), |_| Vec::new());
    let words = Words::of(w, DType::I64, &[aligned, aligned]);
    body.each_vector(w, UNROLL, |w, at, vectors| {
        let to = sweep::address(w, piece.b, at, 1);
        for vector in vectors {
            words.store(w, vector.only, to, vector.later);
        }
    });
    body.each_other(w, piece.n, |w, at| {
        let to = sweep::address(w, piece.b, at, 1);
        let byte = turned(w, &at);
        let byte = w.make(Width::B32, "cvt.u32.u64", &[&byte]);
        lanes::store(w, DType::U8, to, byte);
    });
    writer
}
