//! The short floats against the `half` crate: all values there are, and random sums and products.

use half::{bf16, f16};
use proptest::prelude::*;
use ronde_collective::kernel::{Fold, FoldPlan, Level, Stage, fold, scale_at};
use ronde_collective::types::DType;

use super::reference::{decode_single, encode_single};

fn bytes_of(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn values_of(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}

#[test]
fn every_short_float_survives_widening_and_rounding() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let src = bytes_of(&all);
    for (dtype, nan) in [(DType::F16, 0x7e00), (DType::BF16, 0x7fc0)] {
        let is_nan = |bits: u16| match dtype {
            DType::F16 => f16::from_bits(bits).is_nan(),
            _ => bf16::from_bits(bits).is_nan(),
        };
        let expected: Vec<u16> = all.iter().map(|&bits| if is_nan(bits) { nan } else { bits }).collect();
        for level in Level::available() {
            let plan = FoldPlan::at(level, dtype, Fold::Sum, 1.0, 1.0, None).unwrap();
            let mut dst = vec![0; src.len()];
            // SAFETY: both buffers hold all 65536 values.
            unsafe {
                fold(&plan, Stage::COMPLETE, dst.as_mut_ptr(), None, &[src.as_ptr()], all.len());
            }
            assert!(values_of(&dst) == expected, "{level:?} {dtype}");
        }
    }
}

/// Expects `rounded` of every pair of values, at every level.
fn check_pairs(dtype: DType, kind: Fold, pairs: &[(u16, u16)], rounded: impl Fn(f32, f32) -> f32) {
    let (a, b): (Vec<u16>, Vec<u16>) = pairs.iter().copied().unzip();
    let (a, b) = (bytes_of(&a), bytes_of(&b));
    let mut expected = Vec::new();
    for (a, b) in a.chunks(2).zip(b.chunks(2)) {
        let value = rounded(decode_single(dtype, a), decode_single(dtype, b));
        encode_single(dtype, value, &mut expected);
    }
    for level in Level::available() {
        let plan = FoldPlan::at(level, dtype, kind, 1.0, 1.0, None).unwrap();
        let mut dst = vec![0; a.len()];
        let srcs = [a.as_ptr(), b.as_ptr()];
        // SAFETY: all buffers hold as many elements as there are pairs.
        unsafe { fold(&plan, Stage::COMPLETE, dst.as_mut_ptr(), None, &srcs, pairs.len()) };
        assert_eq!(values_of(&dst), values_of(&expected), "{level:?} {kind} of {dtype}");
    }
}

proptest! {
    #[test]
    fn sums_and_products_round_once_to_nearest_even(
        pairs in prop::collection::vec((any::<u16>(), any::<u16>()), 1..200)
    ) {
        for dtype in [DType::F16, DType::BF16] {
            check_pairs(dtype, Fold::Sum, &pairs, |a, b| a + b);
            check_pairs(dtype, Fold::Product, &pairs, |a, b| a * b);
        }
    }

    #[test]
    fn any_single_rounds_to_the_nearest_short_float(bits in prop::collection::vec(any::<u32>(), 64)) {
        // A factor brings any single-precision value into the fold: one times the value.
        for (dtype, one) in [(DType::F16, 0x3c00u16), (DType::BF16, 0x3f80)] {
            for factor in bits.iter().map(|&bits| f32::from_bits(bits)) {
                let mut expected = Vec::new();
                encode_single(dtype, factor, &mut expected);
                for level in Level::available() {
                    let mut value = one.to_le_bytes();
                    let at = value.as_mut_ptr();
                    // SAFETY: the buffer holds one element, and source and result are the same.
                    unsafe { scale_at(level, dtype, at, at, 1, f64::from(factor)) };
                    prop_assert_eq!(&value[..], &expected[..], "{:?} {} {:e}", level, dtype, factor);
                }
            }
        }
    }
}
