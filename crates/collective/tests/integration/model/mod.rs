//! What collectives should give, computed plainly.
//!
//! Inputs are small whole numbers, so that every order of summation gives the same bits and results can be compared
//! exactly, in every type.

use half::{bf16, f16};
use ronde_collective::types::{DType, ReduceOp};

/// Reductions that are a fold.
const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// Element `index` of rank `rank`: 0, 1 or 2.
pub(crate) fn value(rank: usize, index: usize) -> i64 {
    ((index * 7 + rank * 5 + index / 97) % 3) as i64
}

pub(crate) fn encode(dtype: DType, value: i64) -> Vec<u8> {
    match dtype {
        DType::U8 => (value as u8).to_ne_bytes().to_vec(),
        DType::I8 => (value as i8).to_ne_bytes().to_vec(),
        DType::U16 => (value as u16).to_ne_bytes().to_vec(),
        DType::I16 => (value as i16).to_ne_bytes().to_vec(),
        DType::I32 => (value as i32).to_ne_bytes().to_vec(),
        DType::I64 => value.to_ne_bytes().to_vec(),
        DType::F16 => f16::from_f64(value as f64).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value as f64).to_ne_bytes().to_vec(),
        DType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DType::F64 => (value as f64).to_ne_bytes().to_vec(),
        DType::Bool => vec![u8::from(value != 0)],
    }
}

/// The average of values that add up to `sum`, as each type rounds it.
fn encode_average(dtype: DType, sum: i64, ranks: usize) -> Vec<u8> {
    let narrow = sum as f32 / ranks as f32;
    match dtype {
        DType::F16 => f16::from_f32(narrow).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(narrow).to_ne_bytes().to_vec(),
        DType::F32 => narrow.to_ne_bytes().to_vec(),
        DType::F64 => (sum as f64 / ranks as f64).to_ne_bytes().to_vec(),
        _ => encode(dtype, sum / ranks as i64),
    }
}

/// One element of the result over `ranks`, of which those that have data gave `values`.
pub(crate) fn reduced(
    dtype: DType,
    op: ReduceOp,
    values: impl Iterator<Item = i64>,
    ranks: usize,
) -> Vec<u8> {
    match op {
        ReduceOp::Sum => encode(dtype, values.sum()),
        ReduceOp::Average => encode_average(dtype, values.sum(), ranks),
        ReduceOp::Min => encode(dtype, values.min().unwrap_or(0)),
        ReduceOp::Max => encode(dtype, values.max().unwrap_or(0)),
        ReduceOp::Product => encode(dtype, values.product()),
        ReduceOp::Adasum => unreachable!("has a reference of its own"),
    }
}

pub(crate) fn every_reduction(mut test: impl FnMut(DType, ReduceOp)) {
    for dtype in DType::ALL {
        for op in OPS {
            if dtype != DType::Bool || op != ReduceOp::Average {
                test(dtype, op);
            }
        }
    }
}
