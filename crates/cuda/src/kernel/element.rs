//! One element on its way through a fold: widened, scaled, folded, divided, rounded.
//!
//! This is the seam between the loop of [`super::fold`], which knows only elements, and the arithmetic of
//! [`super::float`] and [`super::integer`]. Which arithmetic serves an element type depends on whether factors apply:
//! integers then fold wide.

use ronde_collective::kernel::Fold;
use ronde_collective::types::DType;

use super::float::Precision;
use super::integer::{self, Wide};
use super::writer::{Param, Reg, Writer};

/// The arithmetic of one kernel.
#[derive(Clone, Copy)]
pub(super) struct Arithmetic {
    dtype: DType,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Float(Precision),
    Wrapping,
    Wide,
    Truth,
}

/// An element while it is computed with.
#[derive(Clone, Copy)]
pub(super) enum Value {
    /// In one register.
    Plain(Reg),
    /// An integer that must not overflow.
    Wide(Wide),
}

/// The factors and the divisor of a scaled kernel, in the form its arithmetic takes, with the predicates that say which
/// of them change nothing.
pub(super) struct Terms {
    prescale: Factor,
    postscale: Factor,
    divisor: Reg,
    undivided: Reg,
}

struct Factor {
    factor: Reg,
    one: Reg,
}

impl Arithmetic {
    /// Truth values have no factors; a scaled kernel of them takes some and does nothing with them.
    pub(super) fn new(dtype: DType, scaled: bool) -> Arithmetic {
        let kind = match dtype {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Kind::Float(Precision::of(dtype)),
            DType::Bool => Kind::Truth,
            _ if scaled => Kind::Wide,
            _ => Kind::Wrapping,
        };
        Arithmetic { dtype, kind }
    }

    /// Bytes of the vectors to compute with: 16, but no more than four integers that fold wide, which take two
    /// registers each and several more on their way through `float64`.
    pub(super) fn vector_bytes(self) -> usize {
        match self.kind {
            Kind::Wide => (4 * self.dtype.size()).min(16),
            _ => 16,
        }
    }

    /// What a vector is taken apart into: its elements, except that truth values are folded a word at a time.
    pub(super) fn lane(self) -> DType {
        if self.dtype == DType::Bool { DType::I32 } else { self.dtype }
    }

    pub(super) fn widen(self, w: &mut Writer, stored: Reg) -> Value {
        match self.kind {
            Kind::Float(precision) => Value::Plain(precision.widen(w, self.dtype, stored)),
            Kind::Wrapping => Value::Plain(stored),
            Kind::Wide => Value::Wide(Wide::widen(w, stored)),
            Kind::Truth => Value::Plain(integer::truth(w, stored)),
        }
    }

    pub(super) fn fold(self, w: &mut Writer, fold: Fold, a: Value, b: Value) -> Value {
        match (a, b) {
            (Value::Wide(a), Value::Wide(b)) => Value::Wide(a.fold(w, self.dtype, fold, b)),
            (Value::Plain(a), Value::Plain(b)) => Value::Plain(match self.kind {
                Kind::Float(precision) => precision.fold(w, fold, a, b),
                Kind::Truth => integer::fold_truth(w, fold, a, b),
                Kind::Wrapping | Kind::Wide => integer::fold_wrapping(w, self.dtype, fold, a, b),
            }),
            _ => unreachable!("an arithmetic has one form of values"),
        }
    }

    pub(super) fn round(self, w: &mut Writer, value: Value) -> Reg {
        match (value, self.kind) {
            (Value::Wide(wide), _) => wide.round(w, self.dtype),
            (Value::Plain(number), Kind::Float(precision)) => precision.round(w, self.dtype, number),
            (Value::Plain(element), _) => element,
        }
    }

    /// Reads the terms of a scaled kernel.
    pub(super) fn terms(self, w: &mut Writer, [prescale, postscale, divide]: [Param; 3]) -> Terms {
        let [prescale, postscale] = [prescale, postscale].map(|param| {
            let factor = w.read(param);
            let one = w.test("eq.f64", &factor, &ONE);
            let factor = match self.kind {
                Kind::Float(precision) => precision.factor(w, factor),
                _ => factor,
            };
            Factor { factor, one }
        });
        let divisor = w.read(divide);
        let undivided = w.test("eq.u64", &divisor, &1);
        let divisor = match self.kind {
            Kind::Float(precision) => precision.divisor(w, divisor),
            _ => divisor,
        };
        Terms { prescale, postscale, divisor, undivided }
    }

    /// What is done to elements of a source before they are folded.
    pub(super) fn prescale(self, w: &mut Writer, terms: &Terms, values: &mut [Value]) {
        self.scale(w, &terms.prescale, values);
    }

    /// What is done to the results of a fold. Only sums are divided.
    pub(super) fn finish(self, w: &mut Writer, fold: Fold, terms: &Terms, values: &mut [Value]) {
        if fold == Fold::Sum {
            self.divide(w, terms, values);
        }
        self.scale(w, &terms.postscale, values);
    }

    /// A float times one is itself. An integer goes through a `float64`, which not all of them fit in, so there a factor
    /// of one must be no factor at all.
    fn scale(self, w: &mut Writer, by: &Factor, values: &mut [Value]) {
        match self.kind {
            Kind::Float(precision) => {
                for value in values {
                    if let Value::Plain(number) = value {
                        *number = precision.multiply(w, *number, by.factor);
                    }
                }
            }
            Kind::Wide => w.unless(by.one, |w| {
                for value in values {
                    if let Value::Wide(wide) = value {
                        wide.scale(w, by.factor);
                    }
                }
            }),
            Kind::Wrapping | Kind::Truth => {}
        }
    }

    /// Division takes many instructions, so it is left out where it changes nothing.
    fn divide(self, w: &mut Writer, terms: &Terms, values: &[Value]) {
        if matches!(self.kind, Kind::Wrapping | Kind::Truth) {
            return;
        }
        w.unless(terms.undivided, |w| {
            let mut numbers = Vec::new();
            for value in values {
                match value {
                    Value::Wide(wide) => wide.divide(w, terms.divisor),
                    Value::Plain(number) => numbers.push(*number),
                }
            }
            if let Kind::Float(precision) = self.kind {
                precision.divide(w, &numbers, terms.divisor);
            }
        });
    }
}

/// 1.0 as PTX writes a `float64`.
const ONE: &str = "0d3FF0000000000000";
