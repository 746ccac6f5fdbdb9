//! TensorFlow's numbers for element types, and the engine's.

use std::ffi::c_int;

use ronde_bridge::DType;

/// TensorFlow's number of `int32`, the type of ranks, sizes and splits.
pub(crate) const INT32: c_int = 3;

/// The engine's name for a type, if it has one.
pub(crate) fn of_tensorflow(number: c_int) -> Option<DType> {
    Some(match number {
        1 => DType::F32,
        2 => DType::F64,
        INT32 => DType::I32,
        4 => DType::U8,
        5 => DType::I16,
        6 => DType::I8,
        9 => DType::I64,
        10 => DType::Bool,
        14 => DType::BF16,
        17 => DType::U16,
        19 => DType::F16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_the_engine_has_one_number() {
        for dtype in DType::ALL {
            let numbers = (0..64).filter(|&number| of_tensorflow(number) == Some(dtype)).count();
            assert_eq!(numbers, 1, "{dtype}");
        }
    }
}
