//! Exact averages of integers over several hosts.
//!
//! Sums that travel between hosts must not overflow, so they travel as `int64`: narrower types are widened; an
//! `int64` value v is sent as quotient and remainder of v by n, whose sums cannot overflow and give the exact average.
//! Truncated toward zero. Works in blocks, so scratch memory stays bounded.
//!
//! Steps and bytes: those of a sum of `int64` ([`super::hierarchical`]) with 8 bytes an element, 16 for `int64` itself.

use crate::error::Result;
use crate::group::{Group, Reduction};
use crate::types::{DType, ReduceOp};

/// Elements averaged at a time.
const BLOCK: usize = 1 << 18;

pub(super) fn allreduce(
    group: &mut Group,
    source: *const u8,
    output: &mut [u8],
    how: &Reduction,
) -> Result<()> {
    let element = how.dtype.size();
    let ranks = group.size() as i64;
    let wide = how.dtype == DType::I64;
    let mut sums: Vec<i64> = Vec::new();
    for (number, block) in output.chunks_mut(BLOCK * element).enumerate() {
        // SAFETY: the source is as long as the output; it may be the output, of which this block is not yet written.
        let raw = unsafe { std::slice::from_raw_parts(source.add(number * BLOCK * element), block.len()) };
        sums.clear();
        for bytes in raw.chunks_exact(element) {
            let value = scaled(read(how.dtype, bytes), how.prescale);
            if wide {
                sums.extend([value / ranks, value % ranks]);
            } else {
                sums.push(value);
            }
        }
        let len = size_of_val(sums.as_slice());
        // SAFETY: the vector's elements as bytes, for as long as it is not touched otherwise.
        let bytes = unsafe { std::slice::from_raw_parts_mut(sums.as_mut_ptr().cast::<u8>(), len) };
        let sum = Reduction::new(DType::I64, ReduceOp::Sum);
        super::allreduce(group, bytes.as_ptr(), bytes, &sum)?;
        for (index, bytes) in block.chunks_exact_mut(element).enumerate() {
            let average = if wide {
                average_of(sums[2 * index], sums[2 * index + 1], ranks)
            } else {
                sums[index] / ranks
            };
            write(how.dtype, bytes, scaled(average, how.postscale));
        }
    }
    Ok(())
}

/// The average, toward zero, of values whose quotients by `ranks` add up to `quotients` and remainders to `remainders`.
fn average_of(quotients: i64, remainders: i64, ranks: i64) -> i64 {
    let floor = quotients + remainders.div_euclid(ranks);
    floor + i64::from(floor < 0 && remainders.rem_euclid(ranks) != 0)
}

/// The rule of the kernels: a `float64` product, truncated toward zero, saturated.
fn scaled(value: i64, factor: f64) -> i64 {
    if factor == 1.0 { value } else { (value as f64 * factor) as i64 }
}

fn read(dtype: DType, bytes: &[u8]) -> i64 {
    let mut raw = [0; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    let value = i64::from_ne_bytes(raw);
    match dtype {
        DType::I8 => i64::from(value as i8),
        DType::I16 => i64::from(value as i16),
        DType::I32 => i64::from(value as i32),
        _ => value,
    }
}

fn write(dtype: DType, bytes: &mut [u8], value: i64) {
    let (low, high) = match dtype {
        DType::U8 => (0, i64::from(u8::MAX)),
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::U16 => (0, i64::from(u16::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    };
    bytes.copy_from_slice(&value.clamp(low, high).to_ne_bytes()[..bytes.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quotients_and_remainders_give_the_average_truncated_toward_zero(values in prop::collection::vec(any::<i64>(), 1..40)) {
            let ranks = values.len() as i64;
            let quotients = values.iter().map(|value| value / ranks).sum();
            let remainders = values.iter().map(|value| value % ranks).sum();
            let exact = values.iter().map(|&value| i128::from(value)).sum::<i128>() / i128::from(ranks);
            prop_assert_eq!(i128::from(average_of(quotients, remainders, ranks)), exact);
        }
    }

    #[test]
    fn narrow_values_survive_reading_and_writing() {
        let mut bytes = [0; 2];
        write(DType::I16, &mut bytes, -300);
        assert_eq!(read(DType::I16, &bytes), -300);
        write(DType::U8, &mut bytes[..1], 400);
        assert_eq!(read(DType::U8, &bytes[..1]), 255);
    }
}
