//! The value that changes nothing: what a rank without data contributes to a fold.
//!
//! Zero for sums, one for products, the largest value (infinity for floats) for minima and the smallest for maxima.
//! Booleans follow their folds: *false* where those are *or*, *true* where they are *and*. It is kept as one cache line
//! of elements, so that filling memory with it is a plain copy of lines.

use half::{bf16, f16};

use super::plan::Fold;
use crate::types::DType;

const LINE: usize = 64;

/// The neutral element of one fold, ready to be written to memory.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    line: [u8; LINE],
}

impl Identity {
    /// Zeros, whatever the type.
    pub const ZERO: Identity = Identity { line: [0; LINE] };

    /// What folding with leaves every element of this type as it is.
    pub fn new(dtype: DType, fold: Fold) -> Identity {
        match dtype {
            DType::U8 => Identity::choose(fold, 1u8, u8::MAX, u8::MIN),
            DType::I8 => Identity::choose(fold, 1i8, i8::MAX, i8::MIN),
            DType::U16 => Identity::choose(fold, 1u16, u16::MAX, u16::MIN),
            DType::I16 => Identity::choose(fold, 1i16, i16::MAX, i16::MIN),
            DType::I32 => Identity::choose(fold, 1i32, i32::MAX, i32::MIN),
            DType::I64 => Identity::choose(fold, 1i64, i64::MAX, i64::MIN),
            DType::F16 => Identity::choose(fold, f16::ONE, f16::INFINITY, f16::NEG_INFINITY),
            DType::BF16 => Identity::choose(fold, bf16::ONE, bf16::INFINITY, bf16::NEG_INFINITY),
            DType::F32 => Identity::choose(fold, 1f32, f32::INFINITY, f32::NEG_INFINITY),
            DType::F64 => Identity::choose(fold, 1f64, f64::INFINITY, f64::NEG_INFINITY),
            DType::Bool => Identity::choose(fold, 1u8, 1, 0),
        }
    }

    fn choose<T: Bytes>(fold: Fold, one: T, largest: T, smallest: T) -> Identity {
        match fold {
            Fold::Sum => Identity::ZERO,
            Fold::Product => one.repeated(),
            Fold::Min => largest.repeated(),
            Fold::Max => smallest.repeated(),
        }
    }

    /// Fills `len` bytes, which begin with a whole element.
    ///
    /// # Safety
    /// `dst` must be valid for `len` bytes.
    pub unsafe fn fill(&self, dst: *mut u8, len: usize) {
        // SAFETY: every line, and the rest, stays within `len` bytes; the line is our own.
        unsafe {
            for at in (0..len).step_by(LINE) {
                dst.add(at).copy_from_nonoverlapping(self.line.as_ptr(), LINE.min(len - at));
            }
        }
    }
}

/// Numbers whose bytes are known.
trait Bytes: Copy {
    /// A line full of this number.
    fn repeated(self) -> Identity;
}

macro_rules! bytes {
    ($($number:ty),+) => {$(
        impl Bytes for $number {
            fn repeated(self) -> Identity {
                let bytes = self.to_ne_bytes();
                Identity { line: std::array::from_fn(|at| bytes[at % bytes.len()]) }
            }
        }
    )+};
}
bytes!(u8, i8, u16, i16, i32, i64, f16, bf16, f32, f64);
