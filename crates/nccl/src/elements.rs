//! What of our element types and reductions NCCL knows, and its numbers for them.
//!
//! NCCL has no 16-bit integers and no booleans, averages only what can be divided, and has no Adasum. For those the
//! caller finds another way (converts, divides afterwards, or stays on the host): [`knows`] tells it beforehand.

use std::ffi::c_int;

use ronde_collective::types::{DType, ReduceOp};

use crate::error::Error;

/// How contributions become one result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// One of our reductions.
    Plain(ReduceOp),
    /// The sum of all contributions, each multiplied with this rank's factor before. For `float32` and `float64`
    /// only: narrower types would round the factor.
    ScaledSum(f64),
}

impl From<ReduceOp> for Op {
    fn from(op: ReduceOp) -> Op {
        Op::Plain(op)
    }
}

/// Whether NCCL reduces this type in this way.
pub fn knows(dtype: DType, op: impl Into<Op>) -> bool {
    element(dtype).is_ok() && reduction(dtype, op.into()).is_ok()
}

/// NCCL's number for an element type.
pub(crate) fn element(dtype: DType) -> Result<c_int, Error> {
    Ok(match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        DType::U16 | DType::I16 | DType::Bool => return Err(Error::Type(dtype)),
    })
}

/// A reduction as NCCL takes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reduction {
    /// A number it knows.
    Number(c_int),
    /// A sum of `float32` with a factor, which gets a number for one call.
    ScaledSingles(f32),
    /// The same of `float64`.
    ScaledDoubles(f64),
}

/// NCCL's way of a reduction, if it has one for this type.
pub(crate) fn reduction(dtype: DType, op: Op) -> Result<Reduction, Error> {
    Ok(match (op, dtype) {
        (Op::Plain(ReduceOp::Sum), _) => Reduction::Number(0),
        (Op::Plain(ReduceOp::Product), _) => Reduction::Number(1),
        (Op::Plain(ReduceOp::Max), _) => Reduction::Number(2),
        (Op::Plain(ReduceOp::Min), _) => Reduction::Number(3),
        // NCCL divides integers as well, but the sum may overflow before; ours are exact.
        (Op::Plain(ReduceOp::Average), dtype) if dtype.is_float() => Reduction::Number(4),
        (Op::ScaledSum(factor), DType::F32) => Reduction::ScaledSingles(factor as f32),
        (Op::ScaledSum(factor), DType::F64) => Reduction::ScaledDoubles(factor),
        _ => return Err(Error::Op { op, dtype }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_nccls_own_or_refused() {
        let numbers: Vec<Option<c_int>> = DType::ALL.iter().map(|&dtype| element(dtype).ok()).collect();
        let nccl = [Some(1), Some(0), None, None, Some(2), Some(4), Some(6), Some(7), Some(8), None, Some(9)];
        assert_eq!(numbers, nccl);
    }

    #[test]
    fn floats_are_averaged_by_nccl_and_integers_are_not() {
        assert!(knows(DType::BF16, ReduceOp::Average));
        assert!(!knows(DType::I64, ReduceOp::Average));
        assert!(knows(DType::I64, ReduceOp::Max));
        assert!(!knows(DType::F32, ReduceOp::Adasum));
        assert!(!knows(DType::Bool, ReduceOp::Min));
        assert!(knows(DType::F32, Op::ScaledSum(0.1)));
        assert!(!knows(DType::F16, Op::ScaledSum(0.1)));
    }
}
