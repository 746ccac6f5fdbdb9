//! What a fold should give, written for clarity alone: one element at a time, with the `half` crate
//! for the short floats and 128-bit integers for the rest.

use half::{bf16, f16};
use ronde_collective::kernel::Fold;
use ronde_collective::types::DType;

/// A fold with everything that may be asked of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) dtype: DType,
    pub(crate) fold: Fold,
    /// The factor of every source but the last.
    pub(crate) early: f64,
    /// The factor of the last source.
    pub(crate) last: f64,
    pub(crate) divide: Option<u64>,
    pub(crate) postscale: f64,
}

impl Expected {
    pub(crate) fn plain(dtype: DType, fold: Fold) -> Expected {
        Expected { dtype, fold, early: 1.0, last: 1.0, divide: None, postscale: 1.0 }
    }

    /// The bytes of the result.
    pub(crate) fn of(&self, srcs: &[Vec<u8>]) -> Vec<u8> {
        let size = self.dtype.size();
        let mut result = Vec::new();
        for at in (0..srcs[0].len()).step_by(size) {
            let column: Vec<&[u8]> = srcs.iter().map(|src| &src[at..at + size]).collect();
            match self.dtype {
                DType::F16 | DType::BF16 | DType::F32 => self.single(&column, &mut result),
                DType::F64 => self.double(&column, &mut result),
                DType::Bool => self.logical(&column, &mut result),
                _ => self.integer(&column, &mut result),
            }
        }
        result
    }

    fn factor(&self, index: usize, count: usize) -> f64 {
        if index + 1 == count { self.last } else { self.early }
    }

    fn single(&self, column: &[&[u8]], result: &mut Vec<u8>) {
        let fold = |a: f32, b: f32| match self.fold {
            Fold::Sum => a + b,
            Fold::Product => a * b,
            _ if a.is_nan() || b.is_nan() => f32::NAN,
            Fold::Min if a.total_cmp(&b).is_lt() => a,
            Fold::Max if a.total_cmp(&b).is_gt() => a,
            Fold::Min | Fold::Max => b,
        };
        let values = column.iter().enumerate().map(|(k, bytes)| {
            let factor = self.factor(k, column.len()) as f32;
            decode_single(self.dtype, bytes) * factor
        });
        let mut value = values.reduce(fold).unwrap();
        if let Some(divisor) = self.divide {
            value /= divisor as f32;
        }
        encode_single(self.dtype, value * self.postscale as f32, result);
    }

    fn double(&self, column: &[&[u8]], result: &mut Vec<u8>) {
        let fold = |a: f64, b: f64| match self.fold {
            Fold::Sum => a + b,
            Fold::Product => a * b,
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Fold::Min if a.total_cmp(&b).is_lt() => a,
            Fold::Max if a.total_cmp(&b).is_gt() => a,
            Fold::Min | Fold::Max => b,
        };
        let values = column.iter().enumerate().map(|(k, bytes)| {
            let factor = self.factor(k, column.len());
            f64::from_le_bytes((*bytes).try_into().unwrap()) * factor
        });
        let mut value = values.reduce(fold).unwrap();
        if let Some(divisor) = self.divide {
            value /= divisor as f64;
        }
        value *= self.postscale;
        let bits = if value.is_nan() { 0x7ff8_0000_0000_0000 } else { value.to_bits() };
        result.extend(bits.to_le_bytes());
    }

    fn logical(&self, column: &[&[u8]], result: &mut Vec<u8>) {
        let mut truths = column.iter().map(|bytes| bytes[0] != 0);
        let truth = match self.fold {
            Fold::Sum | Fold::Max => truths.any(|truth| truth),
            Fold::Product | Fold::Min => truths.all(|truth| truth),
        };
        result.push(u8::from(truth));
    }

    fn integer(&self, column: &[&[u8]], result: &mut Vec<u8>) {
        let bits = self.dtype.size() as u32 * 8;
        let signed = !matches!(self.dtype, DType::U8 | DType::U16);
        let (least, most) = match signed {
            true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
            false => (0, (1i128 << bits) - 1),
        };
        // Where factors apply, the fold runs in 64 bits, or in 128 for the largest type.
        let within = |value: i128| if bits == 64 { value } else { i128::from(value as i64) };
        let scaled = |value: i128, factor: f64| match factor == 1.0 {
            true => value,
            false => i128::from((value as f64 * factor) as i64),
        };
        let fold = |a: i128, b: i128| match self.fold {
            Fold::Sum => within(a.wrapping_add(b)),
            Fold::Product => within(a.wrapping_mul(b)),
            Fold::Min => a.min(b),
            Fold::Max => a.max(b),
        };
        let values = column.iter().enumerate().map(|(k, bytes)| {
            let factor = self.factor(k, column.len());
            scaled(decode_integer(bytes, signed), factor)
        });
        let mut value = values.reduce(fold).unwrap();
        if let Some(divisor) = self.divide {
            value /= i128::from(divisor);
        }
        value = scaled(value, self.postscale);
        let factors = [self.early, self.last, self.postscale];
        if self.divide.is_some() || factors.iter().any(|&factor| factor != 1.0) {
            value = value.clamp(least, most);
        }
        result.extend(&value.to_le_bytes()[..self.dtype.size()]);
    }
}

pub(crate) fn decode_single(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        DType::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => f32::from_le_bytes(bytes.try_into().unwrap()),
    }
}

/// Appends a value rounded to nearest even, a NaN in its canonical form.
pub(crate) fn encode_single(dtype: DType, value: f32, result: &mut Vec<u8>) {
    match dtype {
        DType::F16 if value.is_nan() => result.extend(0x7e00u16.to_le_bytes()),
        DType::F16 => result.extend(f16::from_f32(value).to_le_bytes()),
        DType::BF16 if value.is_nan() => result.extend(0x7fc0u16.to_le_bytes()),
        DType::BF16 => result.extend(bf16::from_f32(value).to_le_bytes()),
        _ if value.is_nan() => result.extend(0x7fc0_0000u32.to_le_bytes()),
        _ => result.extend(value.to_le_bytes()),
    }
}

fn decode_integer(bytes: &[u8], signed: bool) -> i128 {
    let negative = signed && bytes[bytes.len() - 1] >= 0x80;
    let mut wide = [if negative { 0xff } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

/// Elements that find mistakes: random bits mixed with the values at which rules change.
pub(crate) fn elements(dtype: DType, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    const SPECIAL: [f64; 12] = [
        0.0,
        -0.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        1.0,
        -1.5,
        65504.0,
        6.0e-8,
        -1e-40,
        3.4e38,
        0.1,
    ];
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for _ in 0..count {
        let bits = random();
        let special = SPECIAL[(bits >> 32) as usize % SPECIAL.len()];
        let small = (bits >> 40) as i32 as f64 / 1024.0 - 4096.0;
        match (dtype, bits >> 62) {
            (DType::F16 | DType::BF16 | DType::F32, 0) => {
                encode_single(dtype, special as f32, &mut bytes);
            }
            (DType::F16 | DType::BF16 | DType::F32, 1 | 2) => {
                encode_single(dtype, small as f32, &mut bytes);
            }
            (DType::F64, 0) => bytes.extend(special.to_le_bytes()),
            (DType::F64, 1 | 2) => bytes.extend(small.to_le_bytes()),
            (DType::Bool, 0 | 1) => bytes.push(0),
            _ => bytes.extend(&random().to_le_bytes()[..dtype.size()]),
        }
    }
    bytes
}
