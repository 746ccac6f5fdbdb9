//! The arithmetic of collectives: folding, scaling and copying plain memory as fast as it can be
//! read.
//!
//! Links and algorithms decide *which* bytes meet; this module is what happens when they do.
//! Nothing here knows of ranks, waits, allocates or fails: buffers come as byte addresses (they
//! belong to frameworks, shared segments and sockets, so no alignment is assumed), and whatever can
//! be refused is refused once, when a [`FoldPlan`] is made for an operation.
//!
//! # The same bits everywhere
//! A result must not depend on which rank computed it, and the ranks of a job may run on different
//! CPUs. Hence every implementation (AVX-512, AVX2, portable) gives identical bits, by these rules:
//! - Sources are folded strictly in the order given, each element on its own; nothing is contracted
//!   to a fused multiply-add.
//! - `float16` and `bfloat16` are widened to `float32`, folded there and rounded once, to nearest
//!   even. `float32` and `float64` are folded as they are. Factors are first rounded to the type
//!   the fold runs in.
//! - Minimum and maximum are those of IEEE 754-2019: a NaN in any source makes the result NaN, and
//!   -0.0 is less than +0.0. A NaN result is always stored as the one quiet NaN without sign and
//!   payload.
//! - Integer sums and products wrap. Where a factor or a divisor applies, the fold runs wide
//!   (`int64`; `int128` for `int64`), a factor is a `float64` product truncated toward zero,
//!   division truncates toward zero, and the result saturates, so that an average can not overflow.
//! - Booleans: sum and maximum are *or*, product and minimum are *and*; any nonzero byte is true,
//!   results are 0 or 1.
//!
//! # How it is laid out
//! `level` names what this CPU can do. `cells` is the seam: a group of accumulators that can be
//! loaded, combined and stored. `pack` fills it with plain arrays over the rules of `scalar`,
//! which the compiler vectorises for whatever level it compiles them; `avx2` and `avx512` fill it
//! with registers for the three types folded in `float32`. `fold` holds the one loop over
//! sources, `plan` chooses its instance; `adasum`, `copy` and `identity` stand beside it.

mod adasum;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod cells;
mod copy;
mod fold;
mod identity;
mod level;
mod pack;
mod plan;
mod scalar;

pub use adasum::{combine, combine_at, dots, dots_at};
pub use copy::{copy, copy_at};
pub use fold::{PreScale, Stage, fold, scale, scale_at};
pub use identity::Identity;
pub use level::{Level, cpu_level};
pub use plan::{Fold, FoldPlan};

use crate::types::DType;

/// Why an operation has no kernel.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// Truth values have no average and no multiples.
    #[error("{fold} of {dtype} can not be averaged or scaled: cast the tensor to a number type first")]
    NotANumber {
        /// The element type asked for.
        dtype: DType,
        /// The fold asked for.
        fold: Fold,
    },
    /// Only a sum can be divided by the number of contributions.
    #[error("{fold} of {dtype} can not be averaged: only a sum can")]
    NotASum {
        /// The element type asked for.
        dtype: DType,
        /// The fold asked for.
        fold: Fold,
    },
    /// The divisor is zero or beyond what a signed 64-bit integer holds.
    #[error("{fold} of {dtype} can not be divided by {divisor}: give the number of contributions")]
    Divisor {
        /// The element type asked for.
        dtype: DType,
        /// The fold asked for.
        fold: Fold,
        /// The divisor asked for.
        divisor: u64,
    },
}
