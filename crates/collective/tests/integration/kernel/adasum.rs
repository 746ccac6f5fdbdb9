//! Dot products and weighted sums.

use ronde_collective::kernel::{Fold, Level, combine, combine_at, dots, dots_at, scale_at};
use ronde_collective::types::DType;

use super::guarded::Guarded;
use super::reference::{Expected, decode_single, elements};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const COUNTS: [usize; 7] = [0, 1, 15, 16, 17, 1000, 4097];

/// Elements whose sums are finite.
fn finite(dtype: DType, count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = elements(dtype, count, seed);
    for element in bytes.chunks_mut(dtype.size()) {
        if !value(dtype, element).is_finite() || value(dtype, element).abs() > 1e30 {
            element.fill(0);
        }
    }
    bytes
}

fn value(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        _ => f64::from(decode_single(dtype, bytes)),
    }
}

#[test]
fn dot_products_are_close_to_the_reference_and_the_same_at_every_level() {
    for dtype in FLOATS {
        for count in COUNTS {
            let (a, b) = (finite(dtype, count, 3), finite(dtype, count, 4));
            let elements = |bytes: &[u8]| -> Vec<f64> {
                bytes.chunks(dtype.size()).map(|element| value(dtype, element)).collect()
            };
            let (left, right) = (elements(&a), elements(&b));
            let expect = |x: &[f64], y: &[f64]| -> (f64, f64) {
                let products = x.iter().zip(y).map(|(x, y)| x * y);
                (products.clone().sum(), products.map(f64::abs).sum())
            };
            let (src_a, src_b) = (Guarded::holding(&a, 1), Guarded::holding(&b, 6));
            let (a, b) = (src_a.as_ptr(), src_b.as_ptr());
            // SAFETY: both sources hold `count` elements.
            let found = unsafe { dots(dtype, a, b, count) };
            let pairs = [(&left, &right), (&left, &left), (&right, &right)];
            for (found, (x, y)) in found.into_iter().zip(pairs) {
                let (sum, size) = expect(x, y);
                assert!((found - sum).abs() <= 1e-12 * size, "{dtype} {count}: {found} for {sum}");
            }
            for level in Level::available() {
                // SAFETY: as above.
                let other = unsafe { dots_at(level, dtype, a, b, count) };
                assert_eq!(other.map(f64::to_bits), found.map(f64::to_bits), "{level:?} {dtype}");
            }
        }
    }
}

#[test]
fn a_dot_product_keeps_what_a_short_float_would_lose() {
    // Sixty thousand ones: beyond what float16 counts to exactly, and bfloat16 by far.
    for dtype in [DType::F16, DType::BF16] {
        let one = if dtype == DType::F16 { 0x3c00u16 } else { 0x3f80 };
        let ones: Vec<u8> = one.to_le_bytes().repeat(60_001);
        // SAFETY: the source holds that many elements.
        let found = unsafe { dots(dtype, ones.as_ptr(), ones.as_ptr(), 60_001) };
        assert_eq!(found, [60_001.0; 3]);
    }
}

#[test]
fn weighted_sums_give_the_bits_of_the_reference_also_in_place() {
    let (ca, cb) = (0.7, -0.3);
    for dtype in FLOATS {
        for count in COUNTS {
            let (a, b) = (elements(dtype, count, 5), elements(dtype, count, 6));
            let expected = Expected { early: ca, last: cb, ..Expected::plain(dtype, Fold::Sum) };
            let expected = expected.of(&[a.clone(), b.clone()]);
            for level in Level::available() {
                let (mut src_a, src_b) = (Guarded::holding(&a, 2), Guarded::holding(&b, 9));
                let mut dst = Guarded::empty(a.len(), 4);
                let srcs = [src_a.as_ptr(), src_b.as_ptr()];
                // SAFETY: all three hold `count` elements and are apart.
                unsafe { combine_at(level, dtype, dst.as_mut_ptr(), srcs, count, [ca, cb]) };
                assert!(dst.bytes() == expected, "{level:?} {dtype} {count}");
                let at = src_a.as_mut_ptr();
                // SAFETY: as above, but the result is exactly the first source.
                unsafe { combine(dtype, at, at, src_b.as_ptr(), count, ca, cb) };
                assert!(src_a.bytes() == expected, "in place: {dtype} {count}");
            }
        }
    }
}

#[test]
fn scaling_gives_the_bits_of_the_reference_for_every_number_type() {
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
        for factor in [0.5, -1.25, 3.0e4, 1.0 / 3.0] {
            let src = elements(dtype, 1001, 8);
            let expected = Expected { last: factor, ..Expected::plain(dtype, Fold::Sum) };
            let expected = expected.of(std::slice::from_ref(&src));
            for level in Level::available() {
                let mut dst = Guarded::holding(&src, 3);
                let at = dst.as_mut_ptr();
                // SAFETY: the buffer holds 1001 elements, and source and result are the same.
                unsafe { scale_at(level, dtype, at, at, 1001, factor) };
                assert!(dst.bytes() == expected, "{level:?} {dtype} by {factor}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "int32 has no dot product")]
fn dot_products_are_for_floats() {
    // SAFETY: no element is read.
    unsafe { dots(DType::I32, [].as_ptr(), [].as_ptr(), 0) };
}
