//! Integers: wrapping folds, and wide ones where a factor or a divisor applies.
//!
//! Plain sums and products wrap, in 32 bits (of which the element is the lower part) or in 64. With a factor or a divisor
//! the fold runs in 64 bits, and for `int64` in 128, as `ronde_collective::kernel` has it, and the result saturates. Its
//! results are met to the bit: 128-bit numbers are pairs of registers, added with carry, multiplied and divided as on
//! paper, and converted to `float64` with one rounding. What takes long, dividing a sum that does not fit in 64 bits, is
//! branched around where it does.

use ronde_collective::kernel::Fold;
use ronde_collective::types::DType;

use super::writer::{Reg, Width, Writer};

/// An integer in a fold that runs wide.
#[derive(Clone, Copy)]
pub(super) struct Wide {
    low: Reg,
    /// The upper 64 of 128 bits; the sign of `low`, if `None`.
    high: Option<Reg>,
}

/// Folds two elements, or partial results, in the width they have.
pub(super) fn fold_wrapping(w: &mut Writer, dtype: DType, fold: Fold, a: Reg, b: Reg) -> Reg {
    let bits = if a.width == Width::B64 { "64" } else { "32" };
    let sign = if matches!(dtype, DType::U8 | DType::U16) { "u" } else { "s" };
    let op = match fold {
        Fold::Sum => "add",
        Fold::Min => "min",
        Fold::Max => "max",
        Fold::Product => "mul.lo",
    };
    w.make(a.width, &format!("{op}.{sign}{bits}"), &[&a, &b])
}

/// Folds truth values, which are bytes of 0 or 1.
pub(super) fn fold_truth(w: &mut Writer, fold: Fold, a: Reg, b: Reg) -> Reg {
    let op = match fold {
        Fold::Sum | Fold::Max => "or.b32",
        Fold::Min | Fold::Product => "and.b32",
    };
    w.make(Width::B32, op, &[&a, &b])
}

/// 1 for each byte that is not 0: adding 127 to its lower seven bits reaches the eighth if any of them is set, and never
/// the next byte.
pub(super) fn truth(w: &mut Writer, stored: Reg) -> Reg {
    let lower = w.make(Width::B32, "and.b32", &[&stored, &"0x7f7f7f7f"]);
    let reached = w.make(Width::B32, "add.u32", &[&lower, &"0x7f7f7f7f"]);
    let eighth = w.make(Width::B32, "or.b32", &[&reached, &stored]);
    let shifted = w.make(Width::B32, "shr.u32", &[&eighth, &7]);
    w.make(Width::B32, "and.b32", &[&shifted, &"0x01010101"])
}

impl Wide {
    pub(super) fn widen(w: &mut Writer, stored: Reg) -> Wide {
        let low = match stored.width {
            // Loads have extended the sign, and an unsigned element leaves the sign of 32 bits alone.
            Width::B32 => w.make(Width::B64, "cvt.s64.s32", &[&stored]),
            // A copy, since what is scaled is overwritten.
            _ => w.make(Width::B64, "mov.b64", &[&stored]),
        };
        Wide { low, high: None }
    }

    /// Folds in 64 bits, or where sums and products of `int64` are asked for in 128.
    pub(super) fn fold(self, w: &mut Writer, dtype: DType, fold: Fold, other: Wide) -> Wide {
        match fold {
            Fold::Sum if dtype == DType::I64 => self.add(w, other),
            Fold::Product if dtype == DType::I64 => self.multiply(w, other),
            // Minima and maxima never leave the range of their sources.
            _ => Wide { low: fold_wrapping(w, DType::I64, fold, self.low, other.low), high: None },
        }
    }

    fn add(self, w: &mut Writer, other: Wide) -> Wide {
        let (high, other_high) = (self.high(w), other.high(w));
        let low = w.make(Width::B64, "add.cc.u64", &[&self.low, &other.low]);
        let high = w.make(Width::B64, "addc.u64", &[&high, &other_high]);
        Wide { low, high: Some(high) }
    }

    /// The product of the lower halves, and in the upper half what of the two cross products lies there.
    fn multiply(self, w: &mut Writer, other: Wide) -> Wide {
        let (high, other_high) = (self.high(w), other.high(w));
        let low = w.make(Width::B64, "mul.lo.u64", &[&self.low, &other.low]);
        let carried = w.make(Width::B64, "mul.hi.u64", &[&self.low, &other.low]);
        let carried = w.make(Width::B64, "mad.lo.u64", &[&high, &other.low, &carried]);
        let high = w.make(Width::B64, "mad.lo.u64", &[&self.low, &other_high, &carried]);
        Wide { low, high: Some(high) }
    }

    /// `self = self * factor`: a `float64` product, cut toward zero, held within 64 bits, and 0 where it is not a
    /// number.
    pub(super) fn scale(self, w: &mut Writer, factor: Reg) {
        let number = self.to_double(w);
        let product = w.make(Width::B64, "mul.rn.f64", &[&number, &factor]);
        let not_a_number = w.test("nan.f64", &product, &product);
        let cut = w.make(Width::B64, "cvt.rzi.s64.f64", &[&product]);
        let low = w.choose(Width::B64, not_a_number, &0, &cut);
        self.assign(w, Wide { low, high: None });
    }

    /// `self = self / divisor`, cut toward zero. The divisor is positive.
    pub(super) fn divide(self, w: &mut Writer, divisor: Reg) {
        let Some(high) = self.high else {
            w.set(self.low, "div.s64", &[&self.low, &divisor]);
            return;
        };
        let (long, done) = (w.label(), w.label());
        let fits = self.fits(w, high);
        let beyond = w.make(Width::Truth, "not.pred", &[&fits]);
        w.branch_if(beyond, long);
        w.set(self.low, "div.s64", &[&self.low, &divisor]);
        w.set(high, "shr.s64", &[&self.low, &63]);
        w.branch(done);
        w.place(long);
        self.divide_long(w, high, divisor);
        w.place(done);
    }

    /// Division of 128 bits, on magnitudes: of the upper half at once, then bit by bit, the quotient taking the places
    /// that the dividend leaves. The remainder is less than the divisor, so doubled it still fits.
    fn divide_long(self, w: &mut Writer, high: Reg, divisor: Reg) {
        let negative = w.test("lt.s64", &high, &0);
        self.negate_if(w, high, negative);
        let remainder = w.make(Width::B64, "rem.u64", &[&high, &divisor]);
        w.set(high, "div.u64", &[&high, &divisor]);
        let left = w.make(Width::B32, "mov.u32", &[&64]);
        let again = w.label();
        w.place(again);
        let next = w.make(Width::B64, "shr.u64", &[&self.low, &63]);
        w.set(remainder, "shl.b64", &[&remainder, &1]);
        w.set(remainder, "or.b64", &[&remainder, &next]);
        w.set(self.low, "shl.b64", &[&self.low, &1]);
        let reached = w.test("ge.u64", &remainder, &divisor);
        w.line(format_args!("@{reached} sub.u64 {remainder}, {remainder}, {divisor};"));
        w.line(format_args!("@{reached} or.b64 {0}, {0}, 1;", self.low));
        w.set(left, "sub.u32", &[&left, &1]);
        let more = w.test("ne.u32", &left, &0);
        w.branch_if(more, again);
        self.negate_if(w, high, negative);
    }

    fn negate_if(self, w: &mut Writer, high: Reg, truth: Reg) {
        w.line(format_args!("@{truth} sub.cc.u64 {0}, 0, {0};", self.low));
        w.line(format_args!("@{truth} subc.u64 {high}, 0, {high};"));
    }

    /// The number as `float64`, rounded once. A magnitude of more than 64 bits is cut to its upper 64, whose last bit is
    /// set if anything was cut off: far enough below the last place of a `float64` to matter only for the direction.
    fn to_double(self, w: &mut Writer) -> Reg {
        let Some(high) = self.high else {
            return w.make(Width::B64, "cvt.rn.f64.s64", &[&self.low]);
        };
        let magnitude = Wide {
            low: w.make(Width::B64, "mov.b64", &[&self.low]),
            high: Some(w.make(Width::B64, "mov.b64", &[&high])),
        };
        let upper = magnitude.high(w);
        let negative = w.test("lt.s64", &high, &0);
        magnitude.negate_if(w, upper, negative);

        let zeros = w.make(Width::B32, "clz.b64", &[&upper]);
        let rest_bits = w.make(Width::B32, "sub.u32", &[&64, &zeros]);
        let top = w.make(Width::B64, "shl.b64", &[&upper, &zeros]);
        let below = w.make(Width::B64, "shr.u64", &[&magnitude.low, &rest_bits]);
        let top = w.make(Width::B64, "or.b64", &[&top, &below]);
        let cut = w.make(Width::B64, "shl.b64", &[&magnitude.low, &zeros]);
        let inexact = w.test("ne.u64", &cut, &0);
        let sticky = w.choose(Width::B64, inexact, &1, &0);
        let top = w.make(Width::B64, "or.b64", &[&top, &sticky]);
        let number = w.make(Width::B64, "cvt.rn.f64.u64", &[&top]);

        let exponent = w.make(Width::B32, "add.u32", &[&rest_bits, &1023]);
        let exponent = w.make(Width::B64, "cvt.u64.u32", &[&exponent]);
        let power = w.make(Width::B64, "shl.b64", &[&exponent, &52]);
        let number = w.make(Width::B64, "mul.rn.f64", &[&number, &power]);
        let negated = w.make(Width::B64, "neg.f64", &[&number]);
        w.choose(Width::B64, negative, &negated, &number)
    }

    /// The nearest element.
    pub(super) fn round(self, w: &mut Writer, dtype: DType) -> Reg {
        let (least, most) = match dtype {
            DType::U8 => (0, i64::from(u8::MAX)),
            DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
            DType::U16 => (0, i64::from(u16::MAX)),
            DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
            DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            _ => return self.saturate(w),
        };
        let low = w.make(Width::B64, "max.s64", &[&self.low, &least]);
        let low = w.make(Width::B64, "min.s64", &[&low, &most]);
        w.make(Width::B32, "cvt.u32.u64", &[&low])
    }

    /// The nearest `int64`.
    fn saturate(self, w: &mut Writer) -> Reg {
        let Some(high) = self.high else { return self.low };
        let fits = self.fits(w, high);
        let sign = w.make(Width::B64, "shr.s64", &[&high, &63]);
        let limit = w.make(Width::B64, "xor.b64", &[&sign, &i64::MAX]);
        w.choose(Width::B64, fits, &self.low, &limit)
    }

    fn fits(self, w: &mut Writer, high: Reg) -> Reg {
        let sign = w.make(Width::B64, "shr.s64", &[&self.low, &63]);
        w.test("eq.s64", &sign, &high)
    }

    fn high(self, w: &mut Writer) -> Reg {
        self.high.unwrap_or_else(|| w.make(Width::B64, "shr.s64", &[&self.low, &63]))
    }

    fn assign(self, w: &mut Writer, from: Wide) {
        if let Some(high) = self.high {
            let from_high = from.high(w);
            w.assign(high, from_high);
        }
        w.assign(self.low, from.low);
    }
}
