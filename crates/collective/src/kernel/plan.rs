//! What is decided once for an operation: whether it makes sense, and which instance of the loop
//! runs it.

use std::fmt;
use std::marker::PhantomData;

use super::KernelError;
use super::cells::{self, Cells, Rule};
use super::fold::{Work, run};
use super::level::{Instructions, Level};
use super::pack::Pack;
use super::scalar::{Brain, Float32, Float64, Form, Half, Logical, Single, Wide, Wrapping};
use crate::types::DType;

/// What one element-wise fold does. An average is a sum with a divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// Adds.
    Sum,
    /// Keeps the smallest.
    Min,
    /// Keeps the largest.
    Max,
    /// Multiplies.
    Product,
}

/// Writes the fold's name in lower case.
impl fmt::Display for Fold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Fold::Sum => "sum",
            Fold::Min => "min",
            Fold::Max => "max",
            Fold::Product => "product",
        })
    }
}

/// An instance of the loop. The instructions it is compiled for must be there.
pub(super) type FoldFn = unsafe fn(&Work<'_>);

/// One operation, ready to be run on any buffers by [`fold`](super::fold()).
#[derive(Clone, Copy, Debug)]
pub struct FoldPlan {
    dtype: DType,
    level: Level,
    wide: bool,
    /// A factor other than 1.
    pub(super) prescale: Option<f64>,
    /// A factor other than 1.
    pub(super) postscale: Option<f64>,
    pub(super) divide: Option<u64>,
    /// For steps in which no factor and no divisor applies.
    pub(super) plain: FoldFn,
    /// For all others.
    pub(super) scaled: FoldFn,
}

impl FoldPlan {
    /// Plans `postscale * (fold(prescale * source, …) / divide)` for the level in use.
    ///
    /// # Errors
    /// Booleans can not be scaled or divided, only sums can be divided, and a divisor is at least
    /// 1.
    pub fn new(
        dtype: DType,
        fold: Fold,
        prescale: f64,
        postscale: f64,
        divide: Option<u64>,
    ) -> Result<FoldPlan, KernelError> {
        FoldPlan::at(Level::current(), dtype, fold, prescale, postscale, divide)
    }

    /// [`new`](FoldPlan::new) with the instructions of a given level.
    ///
    /// # Errors
    /// As for [`new`](FoldPlan::new).
    pub fn at(
        level: Level,
        dtype: DType,
        fold: Fold,
        prescale: f64,
        postscale: f64,
        divide: Option<u64>,
    ) -> Result<FoldPlan, KernelError> {
        let prescale = (prescale != 1.0).then_some(prescale);
        let postscale = (postscale != 1.0).then_some(postscale);
        let changes = prescale.is_some() || postscale.is_some() || divide.is_some();
        if changes && dtype == DType::Bool {
            return Err(KernelError::NotANumber { dtype, fold });
        }
        if let Some(divisor) = divide {
            if fold != Fold::Sum {
                return Err(KernelError::NotASum { dtype, fold });
            }
            if divisor == 0 || i64::try_from(divisor).is_err() {
                return Err(KernelError::Divisor { dtype, fold, divisor });
            }
        }
        let half = matches!(dtype, DType::F16 | DType::BF16);
        let wide = half || (changes && !dtype.is_float());
        Ok(FoldPlan { wide, prescale, postscale, divide, ..FoldPlan::unscaled(level, dtype, fold) })
    }

    /// A plan without factors, which always exists.
    pub(super) fn unscaled(level: Level, dtype: DType, fold: Fold) -> FoldPlan {
        let (plain, scaled) = match fold {
            Fold::Sum => instances::<cells::Sum>(level, dtype),
            Fold::Min => instances::<cells::Min>(level, dtype),
            Fold::Max => instances::<cells::Max>(level, dtype),
            Fold::Product => instances::<cells::Product>(level, dtype),
        };
        let wide = matches!(dtype, DType::F16 | DType::BF16);
        FoldPlan { dtype, level, wide, prescale: None, postscale: None, divide: None, plain, scaled }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The level whose instructions are used.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Whether folding in steps gives the bits of folding at once. It does not where the fold runs
    /// in a wider type than elements have, since a partial result is rounded to the element type:
    /// `float16`, `bfloat16`, and integers with a factor or a divisor, whose partial sums may even
    /// wrap.
    pub fn exact_in_steps(&self) -> bool {
        !self.wide
    }
}

/// The cells that serve an element type at each level.
trait Kind {
    type Portable: Cells;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Cells;
    #[cfg(target_arch = "x86_64")]
    type Avx512: Cells;
}

/// Served by one kind of pack at all levels.
struct Packed<C>(PhantomData<C>);

impl<C: Cells> Kind for Packed<C> {
    type Portable = C;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = C;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = C;
}

/// Served by registers where there are some.
struct Vectored<F>(PhantomData<F>);

#[cfg(target_arch = "x86_64")]
impl<F: Form + Copy + super::avx2::Register + super::avx512::Register> Kind for Vectored<F> {
    type Portable = Pack<Float32<F>, 16>;
    type Avx2 = super::avx2::Lanes<F>;
    type Avx512 = super::avx512::Lanes<F>;
}

#[cfg(not(target_arch = "x86_64"))]
impl<F: Form> Kind for Vectored<F> {
    type Portable = Pack<Float32<F>, 16>;
}

/// The plain and the scaled instance for one element type. Packs are as large as the compiler still
/// keeps in vector registers.
fn instances<R: Rule>(level: Level, dtype: DType) -> (FoldFn, FoldFn) {
    fn both<P: Kind, S: Kind, R: Rule>(level: Level) -> (FoldFn, FoldFn) {
        (instance::<P, R, false>(level), instance::<S, R, true>(level))
    }
    fn packed<P: Cells, S: Cells, R: Rule>(level: Level) -> (FoldFn, FoldFn) {
        both::<Packed<P>, Packed<S>, R>(level)
    }
    match dtype {
        DType::U8 => packed::<Pack<Wrapping<u8>, 32>, Pack<Wide<u8>, 16>, R>(level),
        DType::I8 => packed::<Pack<Wrapping<i8>, 32>, Pack<Wide<i8>, 16>, R>(level),
        DType::U16 => packed::<Pack<Wrapping<u16>, 32>, Pack<Wide<u16>, 16>, R>(level),
        DType::I16 => packed::<Pack<Wrapping<i16>, 32>, Pack<Wide<i16>, 16>, R>(level),
        DType::I32 => packed::<Pack<Wrapping<i32>, 16>, Pack<Wide<i32>, 16>, R>(level),
        DType::I64 => packed::<Pack<Wrapping<i64>, 16>, Pack<Wide<i64>, 8>, R>(level),
        DType::F16 => both::<Vectored<Half>, Vectored<Half>, R>(level),
        DType::BF16 => both::<Vectored<Brain>, Vectored<Brain>, R>(level),
        DType::F32 => both::<Vectored<Single>, Vectored<Single>, R>(level),
        DType::F64 => packed::<Pack<Float64, 8>, Pack<Float64, 8>, R>(level),
        DType::Bool => {
            let (plain, _) = packed::<Pack<Logical, 32>, Pack<Logical, 32>, R>(level);
            (plain, plain)
        }
    }
}

fn instance<K: Kind, R: Rule, const SCALED: bool>(level: Level) -> FoldFn {
    match level.instructions() {
        Instructions::Portable => portable::<K::Portable, R, SCALED>,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => avx2::<K::Avx2, R, SCALED>,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => avx512::<K::Avx512, R, SCALED>,
    }
}

unsafe fn portable<C: Cells, R: Rule, const SCALED: bool>(work: &Work<'_>) {
    // SAFETY: passed on to the caller.
    unsafe { run::<C, R, SCALED>(work) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn avx2<C: Cells, R: Rule, const SCALED: bool>(work: &Work<'_>) {
    // SAFETY: passed on to the caller.
    unsafe { run::<C, R, SCALED>(work) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<C: Cells, R: Rule, const SCALED: bool>(work: &Work<'_>) {
    // SAFETY: passed on to the caller.
    unsafe { run::<C, R, SCALED>(work) }
}
