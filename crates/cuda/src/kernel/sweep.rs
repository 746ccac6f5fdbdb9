//! How a thread block walks over its piece, the same for all kernels.
//!
//! A block of [`THREADS`] threads has one piece of `n` units (elements, or bytes). Where all addresses are aligned
//! alike, the piece falls into a short head up to the first aligned unit, a body of whole vectors, and a short tail;
//! where they are not, everything is head. The body goes first: in each round a thread takes `unroll` vectors, a
//! block's breadth apart, so that neighbouring threads touch neighbouring memory; which of them still lie in the body
//! is a predicate for each, so no round needs another loop for what is left over. Head and tail then go unit by unit
//! through one loop.

use super::THREADS;
use super::writer::{Param, Reg, Width, Writer};

/// A block's piece, in registers.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) a: Reg,
    pub(super) b: Reg,
    pub(super) n: Reg,
}

impl Piece {
    /// Reads the entry of the table that is this block's.
    pub(super) fn read(w: &mut Writer, table: Param) -> Piece {
        const BYTES: usize = size_of::<super::Piece>();
        let table = w.read(table);
        let block = w.make(Width::B32, "mov.u32", &[&"%ctaid.x"]);
        let entry = w.make(Width::B64, "mad.wide.u32", &[&block, &BYTES, &table]);
        let [a, b, n] = [0, 8, 16].map(|at| {
            let from = format!("[{entry}+{at}]");
            w.make(Width::B64, "ld.global.u64", &[&from])
        });
        Piece { a, b, n }
    }
}

/// Where the body of a piece begins and ends, in units.
#[derive(Clone, Copy)]
pub(super) struct Body {
    from: Reg,
    to: Reg,
    lanes: usize,
}

impl Body {
    /// The body of a piece of `n` units in vectors of `lanes` units. `to` is where results go, of `size` bytes a unit;
    /// `others` are further addresses with their sizes. Vectors are aligned at every address, or there are none.
    pub(super) fn find(
        w: &mut Writer,
        n: Reg,
        lanes: usize,
        (to, size): (Reg, usize),
        others: impl Fn(&mut Writer) -> Vec<(Reg, usize)>,
    ) -> Body {
        let back = w.make(Width::B64, "neg.s64", &[&to]);
        let bytes = w.make(Width::B64, "and.b64", &[&back, &(lanes * size - 1)]);
        let head = w.make(Width::B64, "shr.u64", &[&bytes, &size.trailing_zeros()]);
        let mut astray = w.make(Width::B64, "mov.u64", &[&0]);
        for (address, size) in others(w) {
            let there = w.make(Width::B64, "mad.lo.u64", &[&head, &size, &address]);
            let over = w.make(Width::B64, "and.b64", &[&there, &(lanes * size - 1)]);
            astray = w.make(Width::B64, "or.b64", &[&astray, &over]);
        }
        let aligned = w.test("eq.u64", &astray, &0);
        let head = w.make(Width::B64, "min.u64", &[&head, &n]);
        let from = w.choose(Width::B64, aligned, &head, &n);
        let rest = w.make(Width::B64, "sub.u64", &[&n, &from]);
        let whole = w.make(Width::B64, "and.b64", &[&rest, &-(lanes as i64)]);
        let to = w.make(Width::B64, "add.u64", &[&from, &whole]);
        Body { from, to, lanes }
    }

    /// No body: all `n` units are outside of it.
    pub(super) fn empty(n: Reg) -> Body {
        Body { from: n, to: n, lanes: 1 }
    }

    /// Does `round` for all vectors of the body: with the unit at which the thread's first vector begins, and for each
    /// of its `unroll` vectors how many units later it begins and the predicate that says whether it lies in the body.
    pub(super) fn each_vector(
        &self,
        w: &mut Writer,
        unroll: usize,
        round: impl FnOnce(&mut Writer, Reg, &[Vector]),
    ) {
        let breadth = THREADS as usize * self.lanes;
        let thread = thread(w);
        let at = w.make(Width::B64, "mad.lo.u64", &[&thread, &self.lanes, &self.from]);
        let (again, done) = (w.label(), w.label());
        w.place(again);
        let past = w.test("ge.u64", &at, &self.to);
        w.branch_if(past, done);
        let vectors: Vec<Vector> = (0..unroll)
            .map(|turn| {
                let later = turn * breadth;
                let only = (turn > 0).then(|| {
                    let begin = w.make(Width::B64, "add.u64", &[&at, &later]);
                    w.test("lt.u64", &begin, &self.to)
                });
                Vector { later, only }
            })
            .collect();
        round(w, at, &vectors);
        w.set(at, "add.u64", &[&at, &(unroll * breadth)]);
        w.branch(again);
        w.place(done);
    }

    /// Does `single` for every unit outside of the body.
    pub(super) fn each_other(&self, w: &mut Writer, n: Reg, single: impl FnOnce(&mut Writer, Reg)) {
        let within = w.make(Width::B64, "sub.u64", &[&self.to, &self.from]);
        let outside = w.make(Width::B64, "sub.u64", &[&n, &within]);
        let turn = thread(w);
        let (again, done) = (w.label(), w.label());
        w.place(again);
        let past = w.test("ge.u64", &turn, &outside);
        w.branch_if(past, done);
        let in_head = w.test("lt.u64", &turn, &self.from);
        let in_tail = w.make(Width::B64, "add.u64", &[&turn, &within]);
        let at = w.choose(Width::B64, in_head, &turn, &in_tail);
        single(w, at);
        w.set(turn, "add.u64", &[&turn, &THREADS]);
        w.branch(again);
        w.place(done);
    }
}

/// One of the vectors that a thread takes in a round.
#[derive(Clone, Copy)]
pub(super) struct Vector {
    /// Units from the thread's first vector.
    pub(super) later: usize,
    /// Whether there is one at all; always, if `None`.
    pub(super) only: Option<Reg>,
}

/// This thread's number in its block.
fn thread(w: &mut Writer) -> Reg {
    let narrow = w.make(Width::B32, "mov.u32", &[&"%tid.x"]);
    w.make(Width::B64, "cvt.u64.u32", &[&narrow])
}

/// `base + index * size`.
pub(super) fn address(w: &mut Writer, base: Reg, index: Reg, size: usize) -> Reg {
    w.make(Width::B64, "mad.lo.u64", &[&index, &size, &base])
}
