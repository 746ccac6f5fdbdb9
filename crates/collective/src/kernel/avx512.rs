//! Cells in 512-bit registers, for the types that are folded in `float32`.
//!
//! Each method is the rule of [`super::scalar`] in a few instructions; the tests hold the two
//! together bit by bit. Bitwise operations on floats go through the integer forms, which need no
//! more than AVX-512F.
//!
//! The safety of every block below is the same: the trait asks its callers for a CPU with these
//! instructions and for valid addresses.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::transmute;

use super::cells::{Cells, Dots, LANES};
use super::scalar::{Brain, CANONICAL_NAN, Half, Single};

/// How sixteen elements of one form come into a register and leave it.
pub(super) trait Register {
    /// The bytes of sixteen elements.
    type Stored: Copy;
    unsafe fn load(from: *const u8) -> __m512;
    unsafe fn narrow(values: __m512) -> Self::Stored;
    unsafe fn stream(results: Self::Stored, to: *mut u8);
}

impl Register for Single {
    type Stored = __m512;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512 {
        // SAFETY: see the head of this file.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn narrow(values: __m512) -> __m512 {
        values
    }
    #[inline(always)]
    unsafe fn stream(results: __m512, to: *mut u8) {
        // SAFETY: see the head of this file.
        unsafe { _mm512_stream_ps(to.cast(), results) }
    }
}

impl Register for Half {
    type Stored = __m256i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512 {
        // SAFETY: see the head of this file.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn narrow(values: __m512) -> __m256i {
        // SAFETY: see the head of this file.
        unsafe { _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(values) }
    }
    #[inline(always)]
    unsafe fn stream(results: __m256i, to: *mut u8) {
        // SAFETY: see the head of this file.
        unsafe { _mm256_stream_si256(to.cast(), results) }
    }
}

impl Register for Brain {
    type Stored = __m256i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512 {
        // SAFETY: see the head of this file.
        unsafe {
            let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(upper))
        }
    }
    /// The instruction of AVX512-BF16 is of no use: it takes subnormal numbers for zero.
    #[inline(always)]
    unsafe fn narrow(values: __m512) -> __m256i {
        // SAFETY: see the head of this file.
        unsafe {
            let bits = _mm512_castps_si512(values);
            let even = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let carry = _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff));
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_add_epi32(bits, carry)))
        }
    }
    #[inline(always)]
    unsafe fn stream(results: __m256i, to: *mut u8) {
        // SAFETY: see the head of this file.
        unsafe { _mm256_stream_si256(to.cast(), results) }
    }
}

/// Sixteen accumulators in a register, for elements of form `F`.
#[derive(Clone, Copy)]
pub(super) struct Lanes<F>(__m512, PhantomData<F>);

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
    type Factor = __m512;
    type Divisor = __m512;
    const N: usize = 16;
    const UNROLL: bool = true;

    instructions!(sum = _mm512_add_ps, product = _mm512_mul_ps);

    #[inline(always)]
    unsafe fn factor(factor: f64) -> __m512 {
        // SAFETY: see the head of this file.
        unsafe { _mm512_set1_ps(factor as f32) }
    }

    #[inline(always)]
    unsafe fn divisor(divisor: u64) -> __m512 {
        // SAFETY: see the head of this file.
        unsafe { _mm512_set1_ps(divisor as f32) }
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
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            F::narrow(_mm512_mask_mov_ps(self.0, nan, _mm512_set1_ps(CANONICAL_NAN)))
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
            let forth = _mm512_castps_si512(_mm512_min_ps(self.0, other.0));
            let back = _mm512_castps_si512(_mm512_min_ps(other.0, self.0));
            Lanes(_mm512_castsi512_ps(_mm512_or_si512(forth, back)), PhantomData)
        }
    }

    /// As for the minimum; what both orders share is the positive zero, but a NaN must be put back.
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: see the head of this file.
        unsafe {
            let forth = _mm512_castps_si512(_mm512_max_ps(self.0, other.0));
            let back = _mm512_castps_si512(_mm512_max_ps(other.0, self.0));
            let shared = _mm512_castsi512_ps(_mm512_and_si512(forth, back));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, other.0);
            Lanes(_mm512_mask_mov_ps(shared, nan, _mm512_set1_ps(CANONICAL_NAN)), PhantomData)
        }
    }

    #[inline(always)]
    unsafe fn scale(self, factor: __m512) -> Self {
        // SAFETY: see the head of this file.
        Lanes(unsafe { _mm512_mul_ps(self.0, factor) }, PhantomData)
    }

    #[inline(always)]
    unsafe fn divide(self, divisor: __m512) -> Self {
        // SAFETY: see the head of this file.
        Lanes(unsafe { _mm512_div_ps(self.0, divisor) }, PhantomData)
    }
}

impl<F: Register + Copy> Dots for Lanes<F> {
    type Sums = [__m512d; 2];

    #[inline(always)]
    unsafe fn zero() -> [__m512d; 2] {
        // SAFETY: see the head of this file.
        unsafe { [_mm512_setzero_pd(); 2] }
    }

    #[inline(always)]
    unsafe fn add(mut sums: [[__m512d; 2]; 3], a: *const u8, b: *const u8) -> [[__m512d; 2]; 3] {
        // SAFETY: see the head of this file.
        unsafe {
            let (a, b) = (widen(F::load(a)), widen(F::load(b)));
            for i in 0..2 {
                sums[0][i] = _mm512_add_pd(sums[0][i], _mm512_mul_pd(a[i], b[i]));
                sums[1][i] = _mm512_add_pd(sums[1][i], _mm512_mul_pd(a[i], a[i]));
                sums[2][i] = _mm512_add_pd(sums[2][i], _mm512_mul_pd(b[i], b[i]));
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn lanes(sums: [__m512d; 2]) -> [f64; LANES] {
        // SAFETY: both are sixteen `f64`.
        unsafe { transmute::<[__m512d; 2], [f64; LANES]>(sums) }
    }
}

/// Sixteen `float32` as `float64`.
#[inline(always)]
unsafe fn widen(values: __m512) -> [__m512d; 2] {
    // SAFETY: see the head of this file.
    unsafe {
        let lower = _mm512_castps512_ps256(values);
        let upper = _mm512_extractf32x8_ps::<1>(values);
        [_mm512_cvtps_pd(lower), _mm512_cvtps_pd(upper)]
    }
}
