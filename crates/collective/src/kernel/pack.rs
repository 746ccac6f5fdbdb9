//! Cells held in plain arrays.
//!
//! [`Pack`] applies the rules of a [`Scalar`] to `N` elements in loops of fixed length. Compiled
//! into a function for AVX2 or AVX-512 the same source becomes vector code of that width, so this
//! serves every integer type, `float64` and `bool` at all levels, and everything at the portable
//! level.

use super::cells::{Cells, Dots, LANES};
use super::scalar::{Float32, Float64, Form, Scalar};

/// `N` accumulators of one element type.
pub(super) struct Pack<S: Scalar, const N: usize>([S::Acc; N]);

impl<S: Scalar, const N: usize> Clone for Pack<S, N> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Scalar, const N: usize> Copy for Pack<S, N> {}

/// A method that combines two packs pair by pair.
macro_rules! pairwise {
    ($($method:ident),+) => {$(
        #[inline(always)]
        unsafe fn $method(mut self, other: Self) -> Self {
            for (cell, other) in self.0.iter_mut().zip(other.0) {
                *cell = S::$method(*cell, other);
            }
            self
        }
    )+};
}

// SAFETY: `Stored` is an array of the elements themselves, and no instruction beyond the base is
// named here.
unsafe impl<S: Scalar, const N: usize> Cells for Pack<S, N> {
    type Stored = [S::Stored; N];
    type Factor = S::Factor;
    type Divisor = S::Divisor;
    const N: usize = N;
    const UNROLL: bool = false;

    pairwise!(sum, min, max, product);

    #[inline(always)]
    unsafe fn factor(factor: f64) -> S::Factor {
        S::factor(factor)
    }

    #[inline(always)]
    unsafe fn divisor(divisor: u64) -> S::Divisor {
        S::divisor(divisor)
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for N elements at `from`; the read asks for no alignment.
        let stored = unsafe { from.cast::<[S::Stored; N]>().read_unaligned() };
        let mut cells = [S::widen(stored[0]); N];
        for (cell, element) in cells.iter_mut().zip(stored) {
            *cell = S::widen(element);
        }
        Pack(cells)
    }

    #[inline(always)]
    unsafe fn round(self) -> [S::Stored; N] {
        let mut results = [S::round(self.0[0]); N];
        for (result, cell) in results.iter_mut().zip(self.0) {
            *result = S::round(cell);
        }
        results
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn stream(results: Self::Stored, to: *mut u8) {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        let from = (&raw const results).cast::<__m128i>();
        let to = to.cast::<__m128i>();
        for i in 0..Self::BYTES / size_of::<__m128i>() {
            // SAFETY: every pack is a multiple of 16 bytes, and `to` is aligned to at least that.
            unsafe { _mm_stream_si128(to.add(i), _mm_loadu_si128(from.add(i))) }
        }
    }

    /// Other architectures have no store that passes the caches and is worth its price.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn stream(results: Self::Stored, to: *mut u8) {
        // SAFETY: passed on to the caller.
        unsafe { Self::write(results, to) }
    }

    #[inline(always)]
    unsafe fn scale(mut self, factor: S::Factor) -> Self {
        for cell in &mut self.0 {
            *cell = S::scale(*cell, factor);
        }
        self
    }

    #[inline(always)]
    unsafe fn divide(mut self, divisor: S::Divisor) -> Self {
        for cell in &mut self.0 {
            *cell = S::divide(*cell, divisor);
        }
        self
    }
}

/// Dot products of packs whose accumulators become `float64` by `From`.
macro_rules! dots {
    ($($generic:ident: $bound:ident)?, $scalar:ty) => {
        impl<$($generic: $bound,)? const N: usize> Dots for Pack<$scalar, N> {
            type Sums = [f64; LANES];

            #[inline(always)]
            unsafe fn zero() -> [f64; LANES] {
                [0.0; LANES]
            }

            #[inline(always)]
            unsafe fn add(
                mut sums: [[f64; LANES]; 3],
                a: *const u8,
                b: *const u8,
            ) -> [[f64; LANES]; 3] {
                for pack in 0..LANES / N {
                    let at = pack * Self::BYTES;
                    // SAFETY: the caller vouches for LANES elements in both sources.
                    let (a, b) = unsafe { (Self::load(a.add(at)), Self::load(b.add(at))) };
                    for i in 0..N {
                        let (a, b) = (f64::from(a.0[i]), f64::from(b.0[i]));
                        sums[0][pack * N + i] += a * b;
                        sums[1][pack * N + i] += a * a;
                        sums[2][pack * N + i] += b * b;
                    }
                }
                sums
            }

            #[inline(always)]
            unsafe fn lanes(sums: [f64; LANES]) -> [f64; LANES] {
                sums
            }
        }
    };
}
dots!(F: Form, Float32<F>);
dots!(, Float64);
