//! Cells in 256-bit registers, for the types that are folded in `float32`.
//!
//! The twin of the 512-bit file: the same rules with AVX2 and F16C. No fused multiply-add, whose
//! result differs in the last bit.
//!
//! The safety of every block below is the same: the trait asks its callers for a CPU with these
//! instructions and for valid addresses.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::transmute;

use super::cells::{Cells, Dots, LANES};
use super::scalar::{Brain, CANONICAL_NAN, Half, Single};

/// How eight elements of one form come into a register and leave it.
pub(super) trait Register {
    /// The bytes of eight elements.
    type Stored: Copy;
    unsafe fn load(from: *const u8) -> __m256;
    unsafe fn narrow(values: __m256) -> Self::Stored;
    unsafe fn stream(results: Self::Stored, to: *mut u8);
}

impl Register for Single {
    type Stored = __m256;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256 {
        // SAFETY: see the head of this file.
        unsafe { _mm256_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn narrow(values: __m256) -> __m256 {
        values
    }
    #[inline(always)]
    unsafe fn stream(results: __m256, to: *mut u8) {
        // SAFETY: see the head of this file.
        unsafe { _mm256_stream_ps(to.cast(), results) }
    }
}

impl Register for Half {
    type Stored = __m128i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256 {
        // SAFETY: see the head of this file.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn narrow(values: __m256) -> __m128i {
        // SAFETY: see the head of this file.
        unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values) }
    }
    #[inline(always)]
    unsafe fn stream(results: __m128i, to: *mut u8) {
        // SAFETY: see the head of this file.
        unsafe { _mm_stream_si128(to.cast(), results) }
    }
}

impl Register for Brain {
    type Stored = __m128i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256 {
        // SAFETY: see the head of this file.
        unsafe {
            let upper = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(upper))
        }
    }
    #[inline(always)]
    unsafe fn narrow(values: __m256) -> __m128i {
        // SAFETY: see the head of this file.
        unsafe {
            let bits = _mm256_castps_si256(values);
            let even = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let carry = _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, carry));
            _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256::<1>(rounded))
        }
    }
    #[inline(always)]
    unsafe fn stream(results: __m128i, to: *mut u8) {
        // SAFETY: see the head of this file.
        unsafe { _mm_stream_si128(to.cast(), results) }
    }
}

/// Eight accumulators in a register, for elements of form `F`.
#[derive(Clone, Copy)]
pub(super) struct Lanes<F>(__m256, PhantomData<F>);

/// A method that is one instruction on two registers.
macro_rules! instructions {
    ($($method:ident = $instruction:ident),+) => {$(
        #[inline(always)]
        unsafe fn $method(self, other: Self) -> Self {
            // SAFETY: see the head of this file.
            Lanes(unsafe { $instruction(self.0, other.0) }, PhantomData)
        }
    )+};
}

// SAFETY: `Stored` is a register's worth of elements, all of whose bit patterns are valid.
unsafe impl<F: Register + Copy> Cells for Lanes<F> {
    type Stored = F::Stored;
    type Factor = __m256;
    type Divisor = __m256;
    const N: usize = 8;
    const UNROLL: bool = true;

    instructions!(sum = _mm256_add_ps, product = _mm256_mul_ps);

    #[inline(always)]
    unsafe fn factor(factor: f64) -> __m256 {
        // SAFETY: see the head of this file.
        unsafe { _mm256_set1_ps(factor as f32) }
    }

    #[inline(always)]
    unsafe fn divisor(divisor: u64) -> __m256 {
        // SAFETY: see the head of this file.
        unsafe { _mm256_set1_ps(divisor as f32) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: see the head of this file.
        Lanes(unsafe { F::load(from) }, PhantomData)
    }

    #[inline(always)]
    unsafe fn round(self) -> F::Stored {
        // SAFETY: see the head of this file.
        unsafe {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            F::narrow(_mm256_blendv_ps(self.0, _mm256_set1_ps(CANONICAL_NAN), nan))
        }
    }

    #[inline(always)]
    unsafe fn stream(results: F::Stored, to: *mut u8) {
        // SAFETY: see the head of this file.
        unsafe { F::stream(results, to) }
    }

    /// The instruction gives its second operand for two zeros and for a NaN. Both orders united are
    /// the negative zero, and a NaN with anything is a NaN.
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: see the head of this file.
        unsafe {
            let forth = _mm256_min_ps(self.0, other.0);
            let back = _mm256_min_ps(other.0, self.0);
            Lanes(_mm256_or_ps(forth, back), PhantomData)
        }
    }

    /// As for the minimum; what both orders share is the positive zero, but a NaN must be put back
    /// (all bits set are a NaN).
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: see the head of this file.
        unsafe {
            let forth = _mm256_max_ps(self.0, other.0);
            let back = _mm256_max_ps(other.0, self.0);
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, other.0);
            Lanes(_mm256_or_ps(_mm256_and_ps(forth, back), nan), PhantomData)
        }
    }

    #[inline(always)]
    unsafe fn scale(self, factor: __m256) -> Self {
        // SAFETY: see the head of this file.
        Lanes(unsafe { _mm256_mul_ps(self.0, factor) }, PhantomData)
    }

    #[inline(always)]
    unsafe fn divide(self, divisor: __m256) -> Self {
        // SAFETY: see the head of this file.
        Lanes(unsafe { _mm256_div_ps(self.0, divisor) }, PhantomData)
    }
}

impl<F: Register + Copy> Dots for Lanes<F> {
    type Sums = [__m256d; 4];

    #[inline(always)]
    unsafe fn zero() -> [__m256d; 4] {
        // SAFETY: see the head of this file.
        unsafe { [_mm256_setzero_pd(); 4] }
    }

    #[inline(always)]
    unsafe fn add(mut sums: [[__m256d; 4]; 3], a: *const u8, b: *const u8) -> [[__m256d; 4]; 3] {
        // SAFETY: see the head of this file.
        unsafe {
            for half in 0..2 {
                let at = half * Self::BYTES;
                let (a, b) = (widen(F::load(a.add(at))), widen(F::load(b.add(at))));
                for j in 0..2 {
                    let i = half * 2 + j;
                    sums[0][i] = _mm256_add_pd(sums[0][i], _mm256_mul_pd(a[j], b[j]));
                    sums[1][i] = _mm256_add_pd(sums[1][i], _mm256_mul_pd(a[j], a[j]));
                    sums[2][i] = _mm256_add_pd(sums[2][i], _mm256_mul_pd(b[j], b[j]));
                }
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn lanes(sums: [__m256d; 4]) -> [f64; LANES] {
        // SAFETY: both are sixteen `f64`.
        unsafe { transmute::<[__m256d; 4], [f64; LANES]>(sums) }
    }
}

/// Eight `float32` as `float64`.
#[inline(always)]
unsafe fn widen(values: __m256) -> [__m256d; 2] {
    // SAFETY: see the head of this file.
    unsafe {
        let lower = _mm256_castps256_ps128(values);
        let upper = _mm256_extractf128_ps::<1>(values);
        [_mm256_cvtps_pd(lower), _mm256_cvtps_pd(upper)]
    }
}
