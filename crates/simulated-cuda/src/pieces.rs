//! What a kernel does to the pieces of its table, one thread block each.
//!
//! Folds are those of `ronde_collective::kernel`, so results have the bits of the CPU. Conversions follow the
//! same rules: an element is rounded to its new type, to 16 bits by way of `float32`, and scaled there.

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
    Fold { plan: FoldPlan, to: DType, bases: Vec<u64> },
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
            Task::Fold { plan, to: to_type, bases } => {
                let size = plan.dtype().size();
                let to = Span::new(piece.b, piece.n, to_type.size())?;
                let places = bases.iter().map(|base| Span::new(base.wrapping_add(piece.a), piece.n, size));
                let places = places.collect::<Result<Vec<Span>>>()?;
                check(device, &places, to)?;
                let sources: Vec<*const u8> = places.iter().map(|place| place.start as *const u8).collect();
                let (dtype, count) = (plan.dtype(), to.bytes / to.size);
                if *to_type == dtype {
                    // SAFETY: all were checked, and the result is exactly one of the sources or apart from them.
                    unsafe {
                        kernel::fold(plan, Stage::COMPLETE, to.start as *mut u8, None, &sources, count)
                    };
                    return Ok(());
                }
                // Words, so that elements of any type are aligned.
                let mut narrow = vec![0_u64; (count * size).div_ceil(8)];
                // SAFETY: as above, and there is room for so many elements.
                unsafe {
                    kernel::fold(plan, Stage::COMPLETE, narrow.as_mut_ptr().cast(), None, &sources, count);
                    for at in 0..count {
                        let from = narrow.as_ptr() as usize + at * size;
                        convert(dtype, *to_type, 1.0, from, to.start + at * to.size);
                    }
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

/// One element: rounded to its new type, and then scaled there.
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
    let rounded = match to {
        DType::F16 => f16::from_bits(round_half(value as f32)).to_f64(),
        DType::BF16 => bf16::from_bits(round_brain(value as f32)).to_f64(),
        DType::F32 => f64::from(f32::from_bits(round_single(value))),
        _ => value,
    };
    // All but doubles are singles in truth, so this is the product of singles.
    let product = if to == DType::F64 { rounded * factor } else { f64::from(rounded as f32 * factor as f32) };
    // SAFETY: passed on to the caller.
    unsafe {
        match to {
            DType::F16 => (target as *mut u16).write(round_half(product as f32)),
            DType::BF16 => (target as *mut u16).write(round_brain(product as f32)),
            DType::F32 => (target as *mut u32).write(round_single(product)),
            _ => (target as *mut u64).write(round_double(product)),
        }
    }
}

fn round_half(value: f32) -> u16 {
    if value.is_nan() { 0x7e00 } else { f16::from_f32(value).to_bits() }
}

fn round_brain(value: f32) -> u16 {
    if value.is_nan() { 0x7fc0 } else { bf16::from_f32(value).to_bits() }
}

fn round_single(value: f64) -> u32 {
    if value.is_nan() { 0x7fc0_0000 } else { (value as f32).to_bits() }
}

fn round_double(value: f64) -> u64 {
    if value.is_nan() { 0x7ff8 << 48 } else { value.to_bits() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(value: f64, to: DType) -> f64 {
        let mut result = 0_u16;
        // SAFETY: both are elements of their type.
        unsafe { convert(DType::F64, to, 1.0, &raw const value as usize, &raw mut result as usize) };
        if to == DType::F16 { f16::from_bits(result).to_f64() } else { bf16::from_bits(result).to_f64() }
    }

    #[test]
    fn doubles_become_halves_by_way_of_singles() {
        // Just above the tie between 1 and the next half. A single takes it for the tie, which goes to 1.
        assert_eq!(converted(1.0 + f64::powi(2.0, -11) + f64::powi(2.0, -40), DType::F16), 1.0);
        assert_eq!(converted(1.0 + f64::powi(2.0, -8) + f64::powi(2.0, -40), DType::BF16), 1.0);
        assert_eq!(converted(f64::MAX, DType::F16), f64::INFINITY);
        assert_eq!(converted(65519.0, DType::F16), f16::MAX.to_f64());
        assert!(converted(-1e-300, DType::F16).is_sign_negative());
        assert!(converted(f64::NAN, DType::BF16).is_nan());
    }

    #[test]
    fn every_half_comes_back_from_all_types() {
        for bits in 0..=u16::MAX {
            for (half, round) in [
                (f16::from_bits(bits).to_f32(), round_half as fn(f32) -> u16),
                (bf16::from_bits(bits).to_f32(), round_brain),
            ] {
                assert!(half.is_nan() || round(half) == bits, "{bits:#x}");
            }
        }
    }
}
