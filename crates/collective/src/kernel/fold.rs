//! The one loop that folds sources into a result, and the calls that use it.
//!
//! [`run`] walks all sources side by side: it loads a few cells of the first, folds in the same
//! cells of every other source while they stay in registers, and stores each result once, to one or
//! two places. So memory is read once and written once however many sources there are. It is
//! compiled once for each kind of [`Cells`] and [`Rule`]; [`super::plan`] holds the choice.

use std::mem::MaybeUninit;

use super::cells::{Cells, Rule};
use super::level::Level;
use super::plan::{Fold, FoldPlan};
use crate::types::DType;

/// Which sources of a fold are raw input, still to be multiplied by the plan's prescale factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreScale {
    /// None: all are results of earlier folds.
    None,
    /// All of them.
    All,
    /// Only the last: the others are results of earlier folds.
    OnlyLast,
}

/// Where in an operation a fold stands. A ring folds in steps, between which a partial result
/// travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Which sources are raw input.
    pub prescale: PreScale,
    /// Whether this is the last step, so that division and postscale apply to the result.
    pub finish: bool,
    /// Whether the result goes past the caches to `dst` (never to the second place). Worth it for
    /// results larger than the cache that nobody reads soon.
    pub stream: bool,
}

impl Stage {
    /// A fold of all raw inputs at once, with ordinary stores.
    pub const COMPLETE: Stage = Stage { prescale: PreScale::All, finish: true, stream: false };
}

/// Folds `count` elements of every source, in the order of `srcs`, into `dst`, and into `also` if
/// given.
///
/// With no source nothing is written.
///
/// # Safety
/// `dst`, `also` and every source must be valid for `count` elements of the plan's type, at any
/// alignment. `dst` may be one of the sources exactly, but must not overlap one in part; `also`
/// overlaps nothing.
pub unsafe fn fold(
    plan: &FoldPlan,
    stage: Stage,
    dst: *mut u8,
    also: Option<*mut u8>,
    srcs: &[*const u8],
    count: usize,
) {
    let (early, last) = match stage.prescale {
        PreScale::None => (None, None),
        PreScale::All => (plan.prescale, plan.prescale),
        PreScale::OnlyLast => (None, plan.prescale),
    };
    let (divide, after) = if stage.finish { (plan.divide, plan.postscale) } else { (None, None) };
    let work = Work { dst, also, srcs, count, stream: stage.stream, early, last, divide, after };
    let plain = early.is_none() && last.is_none() && divide.is_none() && after.is_none();
    let run = if plain { plan.plain } else { plan.scaled };
    // SAFETY: the caller vouches for the addresses, and the plan for the instructions.
    unsafe { run(&work) }
}

/// `dst[i] = factor * src[i]`, rounded as a fold would. A boolean stays what it is unless the
/// factor is zero.
///
/// # Safety
/// `dst` and `src` must be valid for `count` elements at any alignment, and the same or apart.
pub unsafe fn scale(dtype: DType, dst: *mut u8, src: *const u8, count: usize, factor: f64) {
    // SAFETY: passed on to the caller.
    unsafe { scale_at(Level::current(), dtype, dst, src, count, factor) }
}

/// [`scale`] with the instructions of a given level.
///
/// # Safety
/// As for [`scale`].
pub unsafe fn scale_at(level: Level, dtype: DType, dst: *mut u8, src: *const u8, count: usize, factor: f64) {
    if dtype == DType::Bool && factor == 0.0 {
        // SAFETY: the caller vouches for `count` bytes at `dst`.
        unsafe { dst.write_bytes(0, count) };
        return;
    }
    let plan = FoldPlan::unscaled(level, dtype, Fold::Sum);
    let last = (dtype != DType::Bool).then_some(factor);
    let run = if last.is_some() { plan.scaled } else { plan.plain };
    let srcs = [src];
    let work = Work { last, ..Work::plain(dst, &srcs, count) };
    // SAFETY: the caller vouches for the addresses, and the plan for the instructions.
    unsafe { run(&work) }
}

/// One call of a fold, resolved: what to do where.
pub(super) struct Work<'a> {
    pub(super) dst: *mut u8,
    pub(super) also: Option<*mut u8>,
    pub(super) srcs: &'a [*const u8],
    pub(super) count: usize,
    pub(super) stream: bool,
    /// The factor of every source but the last.
    pub(super) early: Option<f64>,
    /// The factor of the last source.
    pub(super) last: Option<f64>,
    pub(super) divide: Option<u64>,
    /// The factor of the result, after division.
    pub(super) after: Option<f64>,
}

impl<'a> Work<'a> {
    /// A fold without factors.
    pub(super) fn plain(dst: *mut u8, srcs: &'a [*const u8], count: usize) -> Work<'a> {
        Work {
            dst,
            also: None,
            srcs,
            count,
            stream: false,
            early: None,
            last: None,
            divide: None,
            after: None,
        }
    }

    /// Elements before the first at which `dst` is a multiple of a cache line, where streaming can
    /// begin; all of them if there is none.
    fn head(&self, size: usize) -> usize {
        let bytes = self.dst.addr().wrapping_neg() % LINE;
        if bytes.is_multiple_of(size) { (bytes / size).min(self.count) } else { self.count }
    }
}

const LINE: usize = 64;

/// The factors of a call in the form that the cells take.
struct Terms<C: Cells> {
    early: Option<C::Factor>,
    last: Option<C::Factor>,
    divide: Option<C::Divisor>,
    after: Option<C::Factor>,
}

/// Does `work`. Without `SCALED` it is known to have no factors and no divisor.
///
/// # Safety
/// As for [`fold`], and to be inlined only where the instructions of `C` are enabled.
#[inline(always)]
pub(super) unsafe fn run<C: Cells, R: Rule, const SCALED: bool>(work: &Work<'_>) {
    if work.srcs.is_empty() {
        return;
    }
    // SAFETY: passed on to the caller: every offset below stays within `count` elements.
    unsafe {
        let terms = Terms::<C> {
            early: work.early.map(|factor| C::factor(factor)),
            last: work.last.map(|factor| C::factor(factor)),
            divide: work.divide.map(|divisor| C::divisor(divisor)),
            after: work.after.map(|factor| C::factor(factor)),
        };
        let head = if work.stream { work.head(C::SIZE) } else { 0 };
        for (from, to, stream) in [(0, head, false), (head, work.count, work.stream)] {
            let end = to * C::SIZE;
            let mut at = from * C::SIZE;
            while C::UNROLL && end - at >= 4 * C::BYTES {
                let results = gather::<C, R, 4, SCALED, true>(work.srcs, at, C::BYTES, &terms);
                store::<C, 4>(work, results, at, stream);
                at += 4 * C::BYTES;
            }
            while end - at >= C::BYTES {
                let results = gather::<C, R, 1, SCALED, true>(work.srcs, at, C::BYTES, &terms);
                store::<C, 1>(work, results, at, stream);
                at += C::BYTES;
            }
            if at < end {
                let bytes = end - at;
                let [result] = gather::<C, R, 1, SCALED, false>(work.srcs, at, bytes, &terms);
                let result = (&raw const result).cast::<u8>();
                work.dst.add(at).copy_from_nonoverlapping(result, bytes);
                if let Some(also) = work.also {
                    also.add(at).copy_from_nonoverlapping(result, bytes);
                }
            }
        }
        if work.stream {
            fence();
        }
    }
}

/// Folds `U` groups of cells that lie `at` bytes into the sources. With `WHOLE` each is complete;
/// otherwise there is one, of which only `bytes` exist.
#[inline(always)]
unsafe fn gather<C: Cells, R: Rule, const U: usize, const SCALED: bool, const WHOLE: bool>(
    srcs: &[*const u8],
    at: usize,
    bytes: usize,
    terms: &Terms<C>,
) -> [C::Stored; U] {
    // SAFETY: passed on to the caller, who has checked that there is a source.
    unsafe {
        let mut acc = fetch::<C, U, WHOLE>(srcs.get_unchecked(0).add(at), bytes);
        if SCALED {
            let factor = if srcs.len() == 1 { terms.last } else { terms.early };
            acc = multiply(acc, factor);
        }
        for k in 1..srcs.len() {
            let mut next = fetch::<C, U, WHOLE>(srcs.get_unchecked(k).add(at), bytes);
            if SCALED {
                let factor = if k == srcs.len() - 1 { terms.last } else { terms.early };
                next = multiply(next, factor);
            }
            for u in 0..U {
                acc[u] = R::apply(acc[u], next[u]);
            }
        }
        if SCALED {
            if let Some(divisor) = terms.divide {
                for cells in &mut acc {
                    *cells = cells.divide(divisor);
                }
            }
            acc = multiply(acc, terms.after);
        }
        let mut results = [acc[0].round(); U];
        for u in 1..U {
            results[u] = acc[u].round();
        }
        results
    }
}

#[inline(always)]
unsafe fn multiply<C: Cells, const U: usize>(mut cells: [C; U], factor: Option<C::Factor>) -> [C; U] {
    if let Some(factor) = factor {
        for cell in &mut cells {
            // SAFETY: passed on to the caller.
            *cell = unsafe { cell.scale(factor) };
        }
    }
    cells
}

#[inline(always)]
unsafe fn fetch<C: Cells, const U: usize, const WHOLE: bool>(from: *const u8, bytes: usize) -> [C; U] {
    // SAFETY: passed on to the caller; what is missing of a part is made up by zeros, which any
    // type has.
    unsafe {
        if WHOLE {
            let mut cells = [C::load(from); U];
            for (u, cell) in cells.iter_mut().enumerate().skip(1) {
                *cell = C::load(from.add(u * C::BYTES));
            }
            cells
        } else {
            let mut part = MaybeUninit::<C::Stored>::zeroed();
            part.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, bytes);
            [C::load(part.as_ptr().cast()); U]
        }
    }
}

#[inline(always)]
unsafe fn store<C: Cells, const U: usize>(work: &Work<'_>, results: [C::Stored; U], at: usize, stream: bool) {
    // SAFETY: passed on to the caller; a stream begins at a cache line and advances by whole cells.
    unsafe {
        let dst = work.dst.add(at);
        if stream {
            for (u, result) in results.iter().enumerate() {
                C::stream(*result, dst.add(u * C::BYTES));
            }
        } else {
            for (u, result) in results.iter().enumerate() {
                C::write(*result, dst.add(u * C::BYTES));
            }
        }
        if let Some(also) = work.also {
            for (u, result) in results.iter().enumerate() {
                C::write(*result, also.add(at + u * C::BYTES));
            }
        }
    }
}

/// Makes streamed stores visible before anything that is stored later, as publishing a result
/// needs.
#[inline(always)]
pub(super) fn fence() {
    // SAFETY: SSE is part of the architecture.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
