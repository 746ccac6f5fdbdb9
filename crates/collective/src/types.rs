//! What a collective operates on: element types and reduction operations.
//!
//! Both enums have fixed numbers because they travel: between ranks in control messages, and across
//! the Python boundary as small integers. [`ReduceOp`] keeps the numbers Horovod scripts know;
//! [`DType`] the names NumPy uses. How each pair is computed is the business of [`crate::kernel`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of one tensor element.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// Unsigned 8-bit integer.
    U8 = 0,
    /// Signed 8-bit integer.
    I8 = 1,
    /// Unsigned 16-bit integer.
    U16 = 2,
    /// Signed 16-bit integer.
    I16 = 3,
    /// Signed 32-bit integer.
    I32 = 4,
    /// Signed 64-bit integer.
    I64 = 5,
    /// IEEE 754 half precision.
    F16 = 6,
    /// IEEE 754 single precision.
    F32 = 7,
    /// IEEE 754 double precision.
    F64 = 8,
    /// One byte, zero or nonzero.
    Bool = 9,
    /// The upper half of a single-precision float.
    BF16 = 10,
}

impl DType {
    /// Every element type, in the order of their codes.
    pub const ALL: [DType; 11] = [
        DType::U8,
        DType::I8,
        DType::U16,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::Bool,
        DType::BF16,
    ];

    /// Bytes one element takes.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 | DType::I8 | DType::Bool => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// The type with this code, if there is one.
    pub fn from_code(code: u8) -> Option<DType> {
        DType::ALL.get(usize::from(code)).copied()
    }

    /// Whether this is one of the four floating-point types.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }
}

/// Writes the type's name.
impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl DType {
    /// The name NumPy uses (`bfloat16` as the frameworks call it).
    pub const fn name(self) -> &'static str {
        match self {
            DType::U8 => "uint8",
            DType::I8 => "int8",
            DType::U16 => "uint16",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F16 => "float16",
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::Bool => "bool",
            DType::BF16 => "bfloat16",
        }
    }
}

/// How the contributions of all ranks become one result. The numbers are Horovod's.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// The sum divided by the number of ranks.
    Average = 0,
    /// The sum.
    Sum = 1,
    /// The scale-insensitive combination of gradients known as Adasum.
    Adasum = 2,
    /// The smallest contribution.
    Min = 3,
    /// The largest contribution.
    Max = 4,
    /// The product.
    Product = 5,
}

impl ReduceOp {
    /// Every operation, in the order of their codes.
    pub const ALL: [ReduceOp; 6] =
        [ReduceOp::Average, ReduceOp::Sum, ReduceOp::Adasum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

    /// The operation with this code, if there is one.
    pub fn from_code(code: u8) -> Option<ReduceOp> {
        ReduceOp::ALL.get(usize::from(code)).copied()
    }
}

/// Writes the operation's name in lower case.
impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ReduceOp::Average => "average",
            ReduceOp::Sum => "sum",
            ReduceOp::Adasum => "adasum",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_back_to_their_type_and_no_further() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype as u8), Some(dtype));
        }
        assert_eq!(DType::from_code(DType::ALL.len() as u8), None);
        for op in ReduceOp::ALL {
            assert_eq!(ReduceOp::from_code(op as u8), Some(op));
        }
        assert_eq!(ReduceOp::from_code(ReduceOp::ALL.len() as u8), None);
    }

    #[test]
    fn names_are_those_numpy_prints() {
        assert_eq!(DType::F32.to_string(), "float32");
        assert_eq!(DType::U8.to_string(), "uint8");
        assert_eq!(DType::BF16.to_string(), "bfloat16");
        assert_eq!(format!("{:>9}", ReduceOp::Sum), "      sum");
    }
}
