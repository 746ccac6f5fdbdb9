//! What a kernel does to the pieces of its table, one thread block each.
//!
//! Folds are those of `ronde_collective::kernel`, so results have the bits of the CPU. Conversions follow the
//! same rules: computed in `float64` if either type is that, otherwise in `float32`, and rounded once.

use half::{bf16, f16};
use ronde_collective::kernel::{self, FoldPlan, Stage};
use ronde_collective::types::DType;

use crate::context::Device;
use crate::ranges;
use crate::status::{ILLEGAL_ADDRESS, LAUNCH_FAILED, MISALIGNED_ADDRESS, Result};

/// An entry of a kernel's table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) n: u64,
}

/// A kernel with its parameters.
pub(crate) enum Task {
    Move,
    Fill { pattern: u64 },
    Convert { from: DType, to: DType, factor: f64 },
    Fold { plan: FoldPlan, bases: Vec<u64> },
}

/// Some bytes that a block touches, and the size of what lies there.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    bytes: usize,
    size: usize,
}

impl Span {
    fn new(start: u64, count: u64, size: usize) -> Result<Span> {
        let bytes =
            usize::try_from(count).ok().and_then(|count| count.checked_mul(size)).ok_or(ILLEGAL_ADDRESS)?;
        Ok(Span { start: start as usize, bytes, size })
    }

    /// That a device may touch it, and that elements lie at multiples of their size.
    fn check(self, device: &Device) -> Result {
        if !ranges::all().reachable(Some(device), self.start, self.bytes) {
            return Err(ILLEGAL_ADDRESS);
        }
        if self.start.is_multiple_of(self.size) { Ok(()) } else { Err(MISALIGNED_ADDRESS) }
    }

    /// That it is another place than `other` or exactly the same: with anything between, a result depends on which
    /// thread is first, so it is none.
    fn apart_or_same(self, other: Span) -> Result {
        let apart = self.start + self.bytes <= other.start || other.start + other.bytes <= self.start;
        let same = self.start == other.start && self.bytes == other.bytes;
        if apart || same { Ok(()) } else { Err(LAUNCH_FAILED) }
    }
}

impl Task {
    /// Runs a table of pieces. Blocks run in any order on a GPU, so here the last one is first.
    pub(crate) fn run(&self, device: &Device, table: u64, count: usize) -> Result {
        let entries = Span::new(table, count as u64, size_of::<Piece>())?;
        Span { size: align_of::<Piece>(), ..entries }.check(device)?;
        for at in (0..count).rev() {
            // SAFETY: the table is memory that the driver knows, for `count` entries of plain numbers.
            let piece = unsafe { (table as *const Piece).add(at).read() };
            if piece.n > 0 {
                self.block(device, piece)?;
            }
        }
        Ok(())
    }

    fn block(&self, device: &Device, piece: Piece) -> Result {
        match self {
            Task::Move => {
                let (from, to) = (Span::new(piece.a, piece.n, 1)?, Span::new(piece.b, piece.n, 1)?);
                check(device, &[from], to)?;
                // SAFETY: both were checked; a copy allows for any overlap.
                unsafe { std::ptr::copy(from.start as *const u8, to.start as *mut u8, to.bytes) };
            }
            Task::Fill { pattern } => {
                let to = Span::new(piece.b, piece.n, 1)?;
                check(device, &[], to)?;
                for (at, byte) in pattern.to_ne_bytes().into_iter().cycle().take(to.bytes).enumerate() {
                    // SAFETY: it was checked for so many bytes.
                    unsafe { (to.start as *mut u8).add(at).write(byte) };
                }
            }
            Task::Convert { from: from_type, to: to_type, factor } => {
                let from = Span::new(piece.a, piece.n, from_type.size())?;
                let to = Span::new(piece.b, piece.n, to_type.size())?;
                check(device, &[from], to)?;
                for at in 0..from.bytes / from.size {
                    // SAFETY: both were checked for so many elements, and for their alignment.
                    unsafe {
                        convert(
                            *from_type,
                            *to_type,
                            *factor,
                            from.start + at * from.size,
                            to.start + at * to.size,
                        )
                    };
                }
            }
            Task::Fold { plan, bases } => {
                let size = plan.dtype().size();
                let to = Span::new(piece.b, piece.n, size)?;
                let places = bases.iter().map(|base| Span::new(base.wrapping_add(piece.a), piece.n, size));
                let places = places.collect::<Result<Vec<Span>>>()?;
                check(device, &places, to)?;
                let sources: Vec<*const u8> = places.iter().map(|place| place.start as *const u8).collect();
                // SAFETY: all were checked, and the result is exactly one of the sources or apart from them.
                unsafe {
                    kernel::fold(plan, Stage::COMPLETE, to.start as *mut u8, None, &sources, to.bytes / size);
                }
            }
        }
        Ok(())
    }
}

fn check(device: &Device, from: &[Span], to: Span) -> Result {
    to.check(device)?;
    for source in from {
        source.check(device)?;
        source.apart_or_same(to)?;
    }
    Ok(())
}

/// One element.
///
/// # Safety
/// The addresses must be valid and aligned for an element of their type.
unsafe fn convert(from: DType, to: DType, factor: f64, source: usize, target: usize) {
    // SAFETY: passed on to the caller.
    let value = unsafe {
        match from {
            DType::F16 => f64::from(f16::from_bits((source as *const u16).read())),
            DType::BF16 => f64::from(bf16::from_bits((source as *const u16).read())),
            DType::F32 => f64::from((source as *const f32).read()),
            _ => (source as *const f64).read(),
        }
    };
    let product = if from == DType::F64 || to == DType::F64 {
        value * factor
    } else {
        // Both are singles in truth, so this is the product of singles.
        f64::from(value as f32 * factor as f32)
    };
    // SAFETY: passed on to the caller.
    unsafe {
        match to {
            DType::F16 => (target as *mut u16).write(round_half(product)),
            DType::BF16 => (target as *mut u16).write(round_brain(product)),
            DType::F32 => (target as *mut u32).write(round_single(product)),
            _ => (target as *mut u64).write(round_double(product)),
        }
    }
}

fn round_half(value: f64) -> u16 {
    if value.is_nan() { 0x7e00 } else { f16::from_f32(to_odd(value)).to_bits() }
}

fn round_brain(value: f64) -> u16 {
    if value.is_nan() { 0x7fc0 } else { bf16::from_f32(to_odd(value)).to_bits() }
}

fn round_single(value: f64) -> u32 {
    if value.is_nan() { 0x7fc0_0000 } else { (value as f32).to_bits() }
}

fn round_double(value: f64) -> u64 {
    if value.is_nan() { 0x7ff8 << 48 } else { value.to_bits() }
}

/// A single from which a half is rounded as if from `value` itself: of the two singles around it, the one whose last
/// bit is set, so that it never looks like a tie that `value` is not.
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    let (bits, back) = (near.to_bits(), f64::from(near));
    if back == value || bits & 1 == 1 {
        near
    } else if back.abs() > value.abs() {
        f32::from_bits(bits - 1)
    } else {
        f32::from_bits(bits + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once() {
        // Just above the tie between 1 and the next half. A single takes it for the tie, which goes to 1.
        let above = 1.0 + f64::powi(2.0, -11) + f64::powi(2.0, -40);
        assert_eq!(f16::from_bits(round_half(above)).to_f64(), 1.0 + f64::powi(2.0, -10));
        assert_eq!(round_half(-above), round_half(above) | 0x8000);
        let above = 1.0 + f64::powi(2.0, -8) + f64::powi(2.0, -40);
        assert_eq!(bf16::from_bits(round_brain(above)).to_f64(), 1.0 + f64::powi(2.0, -7));
        assert_eq!(f16::from_bits(round_half(f64::MAX)), f16::INFINITY);
        assert_eq!(f16::from_bits(round_half(65519.0)), f16::MAX);
        assert_eq!(round_half(-1e-300), 0x8000);
        assert_eq!(round_half(f64::NAN), 0x7e00);
    }

    #[test]
    fn every_half_comes_back_from_all_types() {
        for bits in 0..=u16::MAX {
            for (half, round) in [
                (f64::from(f16::from_bits(bits)), round_half as fn(f64) -> u16),
                (f64::from(bf16::from_bits(bits)), round_brain),
            ] {
                assert!(half.is_nan() || round(half) == bits, "{bits:#x}");
            }
        }
    }
}
