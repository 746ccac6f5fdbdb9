//! Floats: how they are widened, folded and rounded.
//!
//! The rules are those of `ronde_collective::kernel`, to the bit: halves are computed with in `float32`, minimum and
//! maximum know -0.0 and NaN, and a NaN result is the one quiet NaN without sign and payload. The GPU's own minimum,
//! and its own NaN, differ from that (and from one generation to the next), so both are spelled out. `bfloat16` is
//! integer arithmetic, since its instructions are younger than the oldest GPU we serve.

use ronde_collective::kernel::Fold;
use ronde_collective::types::DType;

use super::writer::{Reg, Width, Writer};

/// What floats are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    /// `float32`.
    Single,
    /// `float64`.
    Double,
}

impl Precision {
    /// What a fold of this type is computed in.
    pub(super) fn of(dtype: DType) -> Precision {
        if dtype == DType::F64 { Precision::Double } else { Precision::Single }
    }

    fn width(self) -> Width {
        match self {
            Precision::Single => Width::B32,
            Precision::Double => Width::B64,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Precision::Single => "f32",
            Precision::Double => "f64",
        }
    }

    /// The stored element as a number of this precision, which holds all of it.
    pub(super) fn widen(self, w: &mut Writer, dtype: DType, stored: Reg) -> Reg {
        let number = match dtype {
            DType::F16 => {
                let half = w.make(Width::B16, "cvt.u16.u32", &[&stored]);
                w.make(Width::B32, "cvt.f32.f16", &[&half])
            }
            DType::BF16 => w.make(Width::B32, "shl.b32", &[&stored, &16]),
            _ => stored,
        };
        if number.width == self.width() { number } else { w.make(Width::B64, "cvt.f64.f32", &[&number]) }
    }

    /// A factor, which comes as `float64`, in this precision.
    pub(super) fn factor(self, w: &mut Writer, factor: Reg) -> Reg {
        match self {
            Precision::Single => w.make(Width::B32, "cvt.rn.f32.f64", &[&factor]),
            Precision::Double => factor,
        }
    }

    /// A divisor, which comes as `uint64`, in this precision.
    pub(super) fn divisor(self, w: &mut Writer, divisor: Reg) -> Reg {
        w.make(self.width(), &format!("cvt.rn.{}.u64", self.name()), &[&divisor])
    }

    pub(super) fn multiply(self, w: &mut Writer, a: Reg, b: Reg) -> Reg {
        w.make(self.width(), &format!("mul.rn.{}", self.name()), &[&a, &b])
    }

    /// Divides all these by one divisor, which is a whole number. Where that is a power of two, its inverse is exact and
    /// multiplying by it gives the same bits in a tenth of the instructions; most jobs have such a number of ranks.
    pub(super) fn divide(self, w: &mut Writer, numbers: &[Reg], divisor: Reg) {
        let (width, name) = (self.width(), self.name());
        let inverse = w.make(width, &format!("rcp.rn.{name}"), &[&divisor]);
        let significand = w.make(width, &format!("and.{}", width.bits()), &[&divisor, &self.significand()]);
        let power = w.test(&format!("eq.{}", width.bits()), &significand, &0);
        let (exact, done) = (w.label(), w.label());
        w.branch_if(power, exact);
        for number in numbers {
            w.set(*number, &format!("div.rn.{name}"), &[number, &divisor]);
        }
        w.branch(done);
        w.place(exact);
        for number in numbers {
            w.set(*number, &format!("mul.rn.{name}"), &[number, &inverse]);
        }
        w.place(done);
    }

    /// The bits after the leading one; all zero in a power of two.
    fn significand(self) -> &'static str {
        match self {
            Precision::Single => "0x007fffff",
            Precision::Double => "0x000fffffffffffff",
        }
    }

    pub(super) fn fold(self, w: &mut Writer, fold: Fold, a: Reg, b: Reg) -> Reg {
        match fold {
            Fold::Sum => w.make(self.width(), &format!("add.rn.{}", self.name()), &[&a, &b]),
            Fold::Product => self.multiply(w, a, b),
            Fold::Min => self.outermost(w, "lt", "or", a, b),
            Fold::Max => self.outermost(w, "gt", "and", a, b),
        }
    }

    /// The one of `a` and `b` that compares as `wanted`. Equal values have equal bits except for the two zeros, of which
    /// `merge` makes the right one. A NaN stays: comparing with one is false, which chooses `b`.
    fn outermost(self, w: &mut Writer, wanted: &str, merge: &str, a: Reg, b: Reg) -> Reg {
        let (width, name) = (self.width(), self.name());
        let first = w.test(&format!("{wanted}.{name}"), &a, &b);
        let outer = w.choose(width, first, &a, &b);
        let equal = w.test(&format!("eq.{name}"), &a, &b);
        let tied = w.make(width, &format!("{merge}.{}", width.bits()), &[&a, &b]);
        let ordered = w.choose(width, equal, &tied, &outer);
        let not_a_number = self.is_nan(w, a);
        w.choose(width, not_a_number, &a, &ordered)
    }

    fn is_nan(self, w: &mut Writer, number: Reg) -> Reg {
        w.test(&format!("nan.{}", self.name()), &number, &number)
    }

    /// The number as an element, rounded to nearest even. To 16 bits a `float64` goes by way of `float32`, as it does in
    /// frameworks, although that rounds twice.
    pub(super) fn round(self, w: &mut Writer, dtype: DType, number: Reg) -> Reg {
        if self == Precision::Double && dtype.size() == 2 {
            let single = w.make(Width::B32, "cvt.rn.f32.f64", &[&number]);
            return Precision::Single.round(w, dtype, single);
        }
        let not_a_number = self.is_nan(w, number);
        let rounded = match (self, dtype) {
            (_, DType::F16) => {
                let half = w.make(Width::B16, "cvt.rn.f16.f32", &[&number]);
                w.make(Width::B32, "cvt.u32.u16", &[&half])
            }
            (_, DType::BF16) => upper_half(w, number),
            (Precision::Double, DType::F32) => w.make(Width::B32, "cvt.rn.f32.f64", &[&number]),
            _ => number,
        };
        let nan = match dtype {
            DType::F16 => "0x7e00",
            DType::BF16 => "0x7fc0",
            DType::F32 => "0x7fc00000",
            _ => "0x7ff8000000000000",
        };
        w.choose(rounded.width, not_a_number, &nan, &rounded)
    }
}

/// The upper half of a `float32` that is not NaN, rounded to nearest even by adding just less than half of its last
/// place, or just half if that place is odd.
fn upper_half(w: &mut Writer, single: Reg) -> Reg {
    let even = w.make(Width::B32, "bfe.u32", &[&single, &16, &1]);
    let raised = w.make(Width::B32, "add.u32", &[&single, &"0x7fff"]);
    let raised = w.make(Width::B32, "add.u32", &[&raised, &even]);
    w.make(Width::B32, "shr.u32", &[&raised, &16])
}
