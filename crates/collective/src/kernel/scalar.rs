//! The rules of arithmetic, one element at a time.
//!
//! A [`Scalar`] says for one element type what it is widened to, how two values combine, and how
//! the result is rounded back. This is the definition that every faster implementation must match
//! bit for bit; wrapped in arrays by [`super::pack`] it is also the implementation for all integer
//! types, `float64` and `bool`, and for everything on CPUs without one of the known vector levels.
//! Everything is written without branches that depend on data, so that the compiler can vectorise
//! it.

use std::marker::PhantomData;

/// One element type and the arithmetic of its fold.
pub(super) trait Scalar {
    /// The element as it lies in memory; any bit pattern is valid.
    type Stored: Copy;
    /// What it is folded in.
    type Acc: Copy;
    /// What it is multiplied by.
    type Factor: Copy;
    /// What it is divided by.
    type Divisor: Copy;

    fn factor(factor: f64) -> Self::Factor;
    fn divisor(divisor: u64) -> Self::Divisor;
    fn widen(stored: Self::Stored) -> Self::Acc;
    fn round(acc: Self::Acc) -> Self::Stored;
    fn sum(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn min(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn max(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn product(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn scale(acc: Self::Acc, factor: Self::Factor) -> Self::Acc;
    fn divide(acc: Self::Acc, divisor: Self::Divisor) -> Self::Acc;
}

/// The four folds of a type that has them as `Ord` and wrapping arithmetic.
macro_rules! integer_folds {
    ($acc:ty) => {
        #[inline(always)]
        fn sum(a: $acc, b: $acc) -> $acc {
            a.wrapping_add(b)
        }
        #[inline(always)]
        fn min(a: $acc, b: $acc) -> $acc {
            a.min(b)
        }
        #[inline(always)]
        fn max(a: $acc, b: $acc) -> $acc {
            a.max(b)
        }
        #[inline(always)]
        fn product(a: $acc, b: $acc) -> $acc {
            a.wrapping_mul(b)
        }
    };
}

/// Integers folded in their own type, which wraps. Factors and divisors go through [`Wide`], never
/// through this.
pub(super) struct Wrapping<T>(PhantomData<T>);

/// Integers folded in a wider type, for factors and averages.
pub(super) struct Wide<T>(PhantomData<T>);

macro_rules! integers {
    ($($int:ty, $wide:ty);+) => {$(
        impl Scalar for Wrapping<$int> {
            type Stored = $int;
            type Acc = $int;
            type Factor = ();
            type Divisor = ();

            integer_folds!($int);
            #[inline(always)]
            fn factor(_: f64) {}
            #[inline(always)]
            fn divisor(_: u64) {}
            #[inline(always)]
            fn widen(stored: $int) -> $int {
                stored
            }
            #[inline(always)]
            fn round(acc: $int) -> $int {
                acc
            }
            #[inline(always)]
            fn scale(acc: $int, (): ()) -> $int {
                acc
            }
            #[inline(always)]
            fn divide(acc: $int, (): ()) -> $int {
                acc
            }
        }

        impl Scalar for Wide<$int> {
            type Stored = $int;
            type Acc = $wide;
            type Factor = f64;
            type Divisor = i64;

            integer_folds!($wide);
            #[inline(always)]
            fn factor(factor: f64) -> f64 {
                factor
            }
            #[inline(always)]
            fn divisor(divisor: u64) -> i64 {
                // A plan holds no divisor beyond `i64`.
                divisor as i64
            }
            #[inline(always)]
            fn widen(stored: $int) -> $wide {
                <$wide>::from(stored)
            }
            #[inline(always)]
            fn round(acc: $wide) -> $int {
                acc.clamp(<$wide>::from(<$int>::MIN), <$wide>::from(<$int>::MAX)) as $int
            }
            #[inline(always)]
            fn scale(acc: $wide, factor: f64) -> $wide {
                <$wide>::from((acc as f64 * factor) as i64)
            }
            #[inline(always)]
            fn divide(acc: $wide, divisor: i64) -> $wide {
                // Most sums fit in 64 bits, where division is several times cheaper than in 128.
                match i64::try_from(acc) {
                    Ok(narrow) => <$wide>::from(narrow / divisor),
                    Err(_) => acc / <$wide>::from(divisor),
                }
            }
        }
    )+};
}
integers!(u8, i64; i8, i64; u16, i64; i16, i64; i32, i64; i64, i128);

/// What every NaN is stored as. (The language leaves the bits of `f32::NAN` open.)
pub(super) const CANONICAL_NAN: f32 = f32::from_bits(0x7fc0_0000);

/// How a float that is folded in `float32` lies in memory.
pub(super) trait Form {
    /// Its bytes.
    type Stored: Copy;
    fn widen(stored: Self::Stored) -> f32;
    /// Rounds a value to nearest even. The value is not NaN unless it is the canonical NaN.
    fn narrow(value: f32) -> Self::Stored;
}

/// IEEE 754 single precision.
#[derive(Clone, Copy)]
pub(super) struct Single;
/// IEEE 754 half precision.
#[derive(Clone, Copy)]
pub(super) struct Half;
/// The upper half of a single.
#[derive(Clone, Copy)]
pub(super) struct Brain;

impl Form for Single {
    type Stored = f32;
    #[inline(always)]
    fn widen(stored: f32) -> f32 {
        stored
    }
    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
}

impl Form for Half {
    type Stored = u16;

    /// Subnormals are made by subtracting normal numbers, so that a thread whose CPU is set to
    /// treat subnormal `float32` as zero gets the same value.
    #[inline(always)]
    fn widen(stored: u16) -> f32 {
        const REBIAS: u32 = (127 - 15) << 23;
        const LEAST_NORMAL: u32 = (127 - 14) << 23;
        let sign = u32::from(stored & 0x8000) << 16;
        let magnitude = u32::from(stored & 0x7fff) << 13;
        let exponent = magnitude >> 23;
        let subnormal = f32::from_bits(magnitude + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL);
        let rebiased = magnitude + REBIAS + if exponent == 31 { REBIAS } else { 0 };
        f32::from_bits(sign | if exponent == 0 { subnormal.to_bits() } else { rebiased })
    }

    /// Below the least normal half, adding 0.5 puts the last bit of a half at the last bit of the
    /// sum, and the addition itself rounds.
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        // Magnitudes have no sign bit, so they compare the same as signed integers, which every
        // vector instruction set can do.
        const LEAST_NORMAL: i32 = (127 - 14) << 23;
        const OVERFLOW: i32 = (127 + 16) << 23;
        const INFINITE: i32 = 255 << 23;
        let bits = value.to_bits() as i32;
        let magnitude = bits & 0x7fff_ffff;
        let raised = f32::from_bits(magnitude as u32) + 0.5;
        let subnormal = (raised.to_bits() as i32).wrapping_sub(0.5f32.to_bits() as i32);
        let even = (magnitude >> 13) & 1;
        let rebiased = magnitude.wrapping_sub((127 - 15) << 23);
        let normal = rebiased.wrapping_add(0x0fff + even) >> 13;
        let beyond = if magnitude > INFINITE { 0x7e00 } else { 0x7c00 };
        let rounded = if magnitude < LEAST_NORMAL { subnormal } else { normal };
        let half = if magnitude >= OVERFLOW { beyond } else { rounded };
        ((bits >> 16) & 0x8000 | half) as u16
    }
}

impl Form for Brain {
    type Stored = u16;
    #[inline(always)]
    fn widen(stored: u16) -> f32 {
        f32::from_bits(u32::from(stored) << 16)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        // The canonical NaN has only its upper half set, so the carry can not turn it into an
        // infinity.
        let bits = value.to_bits();
        let even = (bits >> 16) & 1;
        (bits.wrapping_add(0x7fff + even) >> 16) as u16
    }
}

/// The arithmetic of a float type, whatever lies in memory.
macro_rules! float_folds {
    ($acc:ty) => {
        type Acc = $acc;
        type Factor = $acc;
        type Divisor = $acc;

        #[inline(always)]
        fn factor(factor: f64) -> $acc {
            factor as $acc
        }
        #[inline(always)]
        fn divisor(divisor: u64) -> $acc {
            divisor as $acc
        }
        #[inline(always)]
        fn sum(a: $acc, b: $acc) -> $acc {
            a + b
        }
        #[inline(always)]
        fn min(a: $acc, b: $acc) -> $acc {
            // Equal values have equal bits except for the two zeros, of which the union is the
            // negative one.
            let least = if a < b { a } else { b };
            let tied = <$acc>::from_bits(a.to_bits() | b.to_bits());
            let ordered = if a == b { tied } else { least };
            if a.is_nan() { a } else { ordered }
        }
        #[inline(always)]
        fn max(a: $acc, b: $acc) -> $acc {
            let most = if a > b { a } else { b };
            let tied = <$acc>::from_bits(a.to_bits() & b.to_bits());
            let ordered = if a == b { tied } else { most };
            if a.is_nan() { a } else { ordered }
        }
        #[inline(always)]
        fn product(a: $acc, b: $acc) -> $acc {
            a * b
        }
        #[inline(always)]
        fn scale(acc: $acc, factor: $acc) -> $acc {
            acc * factor
        }
        #[inline(always)]
        fn divide(acc: $acc, divisor: $acc) -> $acc {
            acc / divisor
        }
    };
}

/// A float folded in `float32`.
pub(super) struct Float32<F>(PhantomData<F>);

impl<F: Form> Scalar for Float32<F> {
    type Stored = F::Stored;
    float_folds!(f32);
    #[inline(always)]
    fn widen(stored: F::Stored) -> f32 {
        F::widen(stored)
    }
    #[inline(always)]
    fn round(acc: f32) -> F::Stored {
        F::narrow(if acc.is_nan() { CANONICAL_NAN } else { acc })
    }
}

/// A float folded in `float64`.
pub(super) struct Float64;

impl Scalar for Float64 {
    type Stored = f64;
    float_folds!(f64);
    #[inline(always)]
    fn widen(stored: f64) -> f64 {
        stored
    }
    #[inline(always)]
    fn round(acc: f64) -> f64 {
        if acc.is_nan() { f64::from_bits(0x7ff8 << 48) } else { acc }
    }
}

/// Truth values. A plan never scales or divides them.
pub(super) struct Logical;

impl Scalar for Logical {
    type Stored = u8;
    type Acc = u8;
    type Factor = ();
    type Divisor = ();

    #[inline(always)]
    fn factor(_: f64) {}
    #[inline(always)]
    fn divisor(_: u64) {}
    #[inline(always)]
    fn widen(stored: u8) -> u8 {
        u8::from(stored != 0)
    }
    #[inline(always)]
    fn round(acc: u8) -> u8 {
        acc
    }
    #[inline(always)]
    fn sum(a: u8, b: u8) -> u8 {
        a | b
    }
    #[inline(always)]
    fn min(a: u8, b: u8) -> u8 {
        a & b
    }
    #[inline(always)]
    fn max(a: u8, b: u8) -> u8 {
        a | b
    }
    #[inline(always)]
    fn product(a: u8, b: u8) -> u8 {
        a & b
    }
    #[inline(always)]
    fn scale(acc: u8, (): ()) -> u8 {
        acc
    }
    #[inline(always)]
    fn divide(acc: u8, (): ()) -> u8 {
        acc
    }
}
