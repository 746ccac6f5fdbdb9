//! The seam between the loop over sources and the instructions: a group of accumulators.
//!
//! [`Cells`] is as many accumulators as one step of the loop handles, however they are held: an
//! array the compiler vectorises, or a vector register. [`Rule`] names one of the four folds at the
//! type level, so that each combination becomes one straight loop.
//!
//! All methods are `unsafe` because implementations may use instructions beyond the architecture's
//! base: they may only be inlined into a function compiled for the level they belong to, which is
//! why every one of them is `#[inline(always)]`.

/// `N` accumulators for elements of one type, and how such elements come in and go out.
///
/// # Safety
/// Callers of any method must run on a CPU with the instructions that the implementation uses.
/// `Stored` must be exactly the bytes of `N` elements, so that any bit pattern is a valid value of
/// it.
pub(super) unsafe trait Cells: Copy {
    /// The bytes of `N` results, ready to be written to several places.
    type Stored: Copy;
    /// A factor in the form that multiplies all cells.
    type Factor: Copy;
    /// A divisor in the form that divides all cells.
    type Divisor: Copy;
    /// How many elements.
    const N: usize;
    /// Bytes that `N` elements take in memory.
    const BYTES: usize = size_of::<Self::Stored>();
    /// Bytes of one element.
    const SIZE: usize = Self::BYTES / Self::N;
    /// Whether four groups at once fit in the registers of the CPU.
    const UNROLL: bool;

    /// Rounds a factor to the type that is folded in.
    unsafe fn factor(factor: f64) -> Self::Factor;
    /// Rounds a divisor to the type that is folded in.
    unsafe fn divisor(divisor: u64) -> Self::Divisor;

    /// Reads `N` elements from any address.
    unsafe fn load(from: *const u8) -> Self;
    /// Rounds to the element type.
    unsafe fn round(self) -> Self::Stored;
    /// Writes results to any address.
    #[inline(always)]
    unsafe fn write(results: Self::Stored, to: *mut u8) {
        // SAFETY: the caller vouches for `to`; the write asks for no alignment.
        unsafe { to.cast::<Self::Stored>().write_unaligned(results) }
    }
    /// Writes results past the caches to an address that is a multiple of 64, or of `BYTES` if that
    /// is less.
    unsafe fn stream(results: Self::Stored, to: *mut u8);

    /// The sums of two groups.
    unsafe fn sum(self, other: Self) -> Self;
    /// The smaller of each pair.
    unsafe fn min(self, other: Self) -> Self;
    /// The larger of each pair.
    unsafe fn max(self, other: Self) -> Self;
    /// The products of two groups.
    unsafe fn product(self, other: Self) -> Self;
    /// Each cell times the factor.
    unsafe fn scale(self, factor: Self::Factor) -> Self;
    /// Each cell divided.
    unsafe fn divide(self, divisor: Self::Divisor) -> Self;
}

/// How many partial sums a dot product has: enough to keep the adders of a CPU busy.
pub(super) const LANES: usize = 16;

/// Cells of floating-point elements, for dot products that are summed in `float64`.
pub(super) trait Dots: Cells {
    /// `LANES` partial sums.
    type Sums: Copy;
    /// Sums of nothing.
    unsafe fn zero() -> Self::Sums;
    /// Adds the products of the `LANES` elements at `a` and `b` to `[a·b, a·a, b·b]`.
    unsafe fn add(sums: [Self::Sums; 3], a: *const u8, b: *const u8) -> [Self::Sums; 3];
    /// The partial sums, one by one.
    unsafe fn lanes(sums: Self::Sums) -> [f64; LANES];
}

/// One of the four folds.
pub(super) trait Rule {
    /// Folds the next contribution into the result so far.
    ///
    /// # Safety
    /// As for the methods of `C`.
    unsafe fn apply<C: Cells>(so_far: C, next: C) -> C;
}

macro_rules! rules {
    ($($rule:ident => $method:ident),+) => {$(
        #[doc = concat!("Folds by `", stringify!($method), "`.")]
        pub(super) struct $rule;

        impl Rule for $rule {
            #[inline(always)]
            unsafe fn apply<C: Cells>(so_far: C, next: C) -> C {
                // SAFETY: passed on to the caller.
                unsafe { so_far.$method(next) }
            }
        }
    )+};
}
rules!(Sum => sum, Min => min, Max => max, Product => product);
