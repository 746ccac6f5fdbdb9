//! The two passes of Adasum: how much two gradients agree, and their weighted sum.
//!
//! Adasum adds two gradients after taking from each what the other already says, which needs their
//! dot product and squared lengths first. These are summed in `float64` over sixteen interleaved
//! partial sums, the same at every level, so that all ranks get the same weights.

use super::cells::{Dots, LANES};
use super::fold::Work;
use super::level::{Instructions, Level};
use super::pack::Pack;
use super::plan::{Fold, FoldPlan};
use super::scalar::{Brain, Float32, Float64, Half, Single};
use crate::types::DType;

/// `[a·b, a·a, b·b]` over `count` elements, in `float64`.
///
/// # Panics
/// If `dtype` is not a floating-point type.
///
/// # Safety
/// `a` and `b` must be valid for `count` elements at any alignment.
pub unsafe fn dots(dtype: DType, a: *const u8, b: *const u8, count: usize) -> [f64; 3] {
    // SAFETY: passed on to the caller.
    unsafe { dots_at(Level::current(), dtype, a, b, count) }
}

/// [`dots`] with the instructions of a given level.
///
/// # Panics
/// As for [`dots`].
///
/// # Safety
/// As for [`dots`].
pub unsafe fn dots_at(level: Level, dtype: DType, a: *const u8, b: *const u8, count: usize) -> [f64; 3] {
    let run: DotsFn = match (dtype, level.instructions()) {
        (DType::F16, Instructions::Portable) => portable::<Pack<Float32<Half>, 16>>,
        (DType::BF16, Instructions::Portable) => portable::<Pack<Float32<Brain>, 16>>,
        (DType::F32, Instructions::Portable) => portable::<Pack<Float32<Single>, 16>>,
        (DType::F64, Instructions::Portable) => portable::<Pack<Float64, 8>>,
        #[cfg(target_arch = "x86_64")]
        (DType::F16, Instructions::Avx2) => avx2::<super::avx2::Lanes<Half>>,
        #[cfg(target_arch = "x86_64")]
        (DType::BF16, Instructions::Avx2) => avx2::<super::avx2::Lanes<Brain>>,
        #[cfg(target_arch = "x86_64")]
        (DType::F32, Instructions::Avx2) => avx2::<super::avx2::Lanes<Single>>,
        #[cfg(target_arch = "x86_64")]
        (DType::F64, Instructions::Avx2) => avx2::<Pack<Float64, 8>>,
        #[cfg(target_arch = "x86_64")]
        (DType::F16, Instructions::Avx512) => avx512::<super::avx512::Lanes<Half>>,
        #[cfg(target_arch = "x86_64")]
        (DType::BF16, Instructions::Avx512) => avx512::<super::avx512::Lanes<Brain>>,
        #[cfg(target_arch = "x86_64")]
        (DType::F32, Instructions::Avx512) => avx512::<super::avx512::Lanes<Single>>,
        #[cfg(target_arch = "x86_64")]
        (DType::F64, Instructions::Avx512) => avx512::<Pack<Float64, 8>>,
        _ => panic!("{dtype} has no dot product here: Adasum is for floating-point types"),
    };
    // SAFETY: the caller vouches for the addresses, and the level for the instructions.
    unsafe { run(a, b, count) }
}

/// `dst[i] = ca * a[i] + cb * b[i]`, computed in `float32` (`float64` for `float64`).
///
/// # Panics
/// If `dtype` is not a floating-point type.
///
/// # Safety
/// All three must be valid for `count` elements at any alignment; `dst` may be `a` or `b` exactly,
/// but overlaps neither in part.
pub unsafe fn combine(
    dtype: DType,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    ca: f64,
    cb: f64,
) {
    // SAFETY: passed on to the caller.
    unsafe { combine_at(Level::current(), dtype, dst, [a, b], count, [ca, cb]) }
}

/// [`combine`] with the instructions of a given level.
///
/// # Panics
/// As for [`combine`].
///
/// # Safety
/// As for [`combine`].
pub unsafe fn combine_at(
    level: Level,
    dtype: DType,
    dst: *mut u8,
    srcs: [*const u8; 2],
    count: usize,
    [ca, cb]: [f64; 2],
) {
    assert!(dtype.is_float(), "{dtype} has no weighted sum here: Adasum is for floating-point types");
    let plan = FoldPlan::unscaled(level, dtype, Fold::Sum);
    let work = Work { early: Some(ca), last: Some(cb), ..Work::plain(dst, &srcs, count) };
    // SAFETY: the caller vouches for the addresses, and the plan for the instructions.
    unsafe { (plan.scaled)(&work) }
}

type DotsFn = unsafe fn(*const u8, *const u8, usize) -> [f64; 3];

#[inline(always)]
unsafe fn run<C: Dots>(a: *const u8, b: *const u8, count: usize) -> [f64; 3] {
    let whole = count - count % LANES;
    // SAFETY: passed on to the caller: every offset below stays within `count` elements.
    unsafe {
        let mut sums = [C::zero(); 3];
        let mut at = 0;
        while at < whole * C::SIZE {
            sums = C::add(sums, a.add(at), b.add(at));
            at += LANES * C::SIZE;
        }
        if whole < count {
            // Zeros change no sum. No element is larger than 8 bytes.
            let mut rest = [[0u8; LANES * 8]; 2];
            let bytes = (count - whole) * C::SIZE;
            rest[0].as_mut_ptr().copy_from_nonoverlapping(a.add(at), bytes);
            rest[1].as_mut_ptr().copy_from_nonoverlapping(b.add(at), bytes);
            sums = C::add(sums, rest[0].as_ptr(), rest[1].as_ptr());
        }
        [total(C::lanes(sums[0])), total(C::lanes(sums[1])), total(C::lanes(sums[2]))]
    }
}

/// The sum of all partial sums, in their order.
#[inline(always)]
fn total(lanes: [f64; LANES]) -> f64 {
    let mut total = 0.0;
    for lane in lanes {
        total += lane;
    }
    total
}

unsafe fn portable<C: Dots>(a: *const u8, b: *const u8, count: usize) -> [f64; 3] {
    // SAFETY: passed on to the caller.
    unsafe { run::<C>(a, b, count) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn avx2<C: Dots>(a: *const u8, b: *const u8, count: usize) -> [f64; 3] {
    // SAFETY: passed on to the caller.
    unsafe { run::<C>(a, b, count) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<C: Dots>(a: *const u8, b: *const u8, count: usize) -> [f64; 3] {
    // SAFETY: passed on to the caller.
    unsafe { run::<C>(a, b, count) }
}
