//! XLA's element types as the engine's.
//!
//! The engine has no unsigned integers of 32 and 64 bits, no complex numbers and no floats of one byte. Where elements are
//! only moved, their bits travel as another type of the same size; where they are added up, as long as that gives the same
//! bits. JAX keeps the state of its random generators in `uint32`, so this is not rare.

use std::ffi::c_int;

use ronde_bridge::{DType, Kind, ReduceOp};

use crate::frame::{Buffer, Refusal};
use crate::xla::{ErrorCode, dtype};

/// What happens to the elements of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Treatment {
    pub(crate) kind: Kind,
    pub(crate) op: ReduceOp,
    /// Whether elements are multiplied by a factor.
    pub(crate) scaled: bool,
}

impl Treatment {
    fn only_moves(self) -> bool {
        !matches!(self.kind, Kind::Allreduce | Kind::Reducescatter)
    }

    /// Whether the sum of two's complements, which is the same for signed and unsigned ones, is all that is asked for.
    fn wraps(self) -> bool {
        self.only_moves() || (self.op == ReduceOp::Sum && !self.scaled)
    }

    /// Whether real and imaginary parts can be treated each by itself.
    fn is_linear(self) -> bool {
        self.only_moves() || matches!(self.op, ReduceOp::Sum | ReduceOp::Average)
    }
}

/// A buffer as the engine takes it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
}

impl View {
    pub(crate) fn of(buffer: &Buffer, treatment: Treatment) -> Result<View, Refusal> {
        let (dtype, parts) = element(buffer.dtype, treatment).ok_or_else(|| {
            let text =
                format!("{:?} has no way to treat elements of XLA's type {}", treatment.kind, buffer.dtype);
            Refusal::new(ErrorCode::InvalidArgument, text)
        })?;
        let mut shape = buffer.shape.clone();
        shape.extend((parts > 1).then_some(parts));
        Ok(View { dtype, shape })
    }

    /// Bytes that all elements take.
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<u64>() as usize * self.dtype.size()
    }

    /// Bytes that one row takes.
    pub(crate) fn row_bytes(&self) -> usize {
        self.shape.iter().skip(1).product::<u64>() as usize * self.dtype.size()
    }
}

/// The engine's type, and of how many of its elements one of XLA's consists.
fn element(xla: c_int, treatment: Treatment) -> Option<(DType, u64)> {
    let same = |dtype| Some((dtype, 1));
    match xla {
        dtype::PRED => same(DType::Bool),
        dtype::S8 => same(DType::I8),
        dtype::S16 => same(DType::I16),
        dtype::S32 => same(DType::I32),
        dtype::S64 => same(DType::I64),
        dtype::U8 => same(DType::U8),
        dtype::U16 => same(DType::U16),
        dtype::F16 => same(DType::F16),
        dtype::F32 => same(DType::F32),
        dtype::F64 => same(DType::F64),
        dtype::BF16 => same(DType::BF16),
        dtype::U32 if treatment.wraps() => same(DType::I32),
        dtype::U64 if treatment.wraps() => same(DType::I64),
        dtype::C64 if treatment.is_linear() => Some((DType::F32, 2)),
        dtype::C128 if treatment.is_linear() => Some((DType::F64, 2)),
        small if dtype::F8.contains(&small) && treatment.only_moves() => same(DType::U8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen_as(xla: c_int, kind: Kind, op: ReduceOp, scaled: bool) -> Option<(DType, u64)> {
        element(xla, Treatment { kind, op, scaled })
    }

    #[test]
    fn unsigned_numbers_are_moved_and_added_but_neither_compared_nor_scaled() {
        assert_eq!(seen_as(dtype::U32, Kind::Broadcast, ReduceOp::Sum, false), Some((DType::I32, 1)));
        assert_eq!(seen_as(dtype::U64, Kind::Allreduce, ReduceOp::Sum, false), Some((DType::I64, 1)));
        assert_eq!(seen_as(dtype::U32, Kind::Allreduce, ReduceOp::Max, false), None);
        assert_eq!(seen_as(dtype::U32, Kind::Allreduce, ReduceOp::Average, false), None);
        assert_eq!(seen_as(dtype::U32, Kind::Reducescatter, ReduceOp::Sum, true), None);
    }

    #[test]
    fn complex_numbers_are_two_reals_in_whatever_is_linear() {
        assert_eq!(seen_as(dtype::C64, Kind::Allreduce, ReduceOp::Average, true), Some((DType::F32, 2)));
        assert_eq!(seen_as(dtype::C128, Kind::Allgather, ReduceOp::Sum, false), Some((DType::F64, 2)));
        assert_eq!(seen_as(dtype::C64, Kind::Allreduce, ReduceOp::Product, false), None);
    }

    #[test]
    fn floats_of_one_byte_are_only_moved() {
        assert_eq!(seen_as(dtype::F8[0], Kind::Alltoall, ReduceOp::Sum, false), Some((DType::U8, 1)));
        assert_eq!(seen_as(dtype::F8[0], Kind::Allreduce, ReduceOp::Sum, false), None);
    }

    #[test]
    fn a_complex_array_has_a_dimension_more_and_rows_twice_as_long() {
        let buffer = Buffer { dtype: dtype::C64, data: std::ptr::null_mut(), shape: vec![3, 5] };
        let moved = Treatment { kind: Kind::Allgather, op: ReduceOp::Sum, scaled: false };
        let view = View::of(&buffer, moved).expect("complex numbers can be moved");
        assert_eq!(view.shape, [3, 5, 2]);
        assert_eq!((view.bytes(), view.row_bytes()), (120, 40));
    }
}
