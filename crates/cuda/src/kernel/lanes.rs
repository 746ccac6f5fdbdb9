//! Elements in memory: one at a time, or several in a vector of 2, 4, 8 or 16 bytes.
//!
//! A single element of up to 32 bits is held in a 32-bit register, extended by its sign if it has one; one of 64 bits in
//! a 64-bit register. A vector is held as the words it was loaded as, so that it takes no more registers than bytes
//! until its elements are needed.

use ronde_collective::types::DType;

use super::writer::{Reg, Width, Writer};

/// The PTX type for loading and storing one element.
fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::U8 | DType::Bool => "u8",
        DType::I8 => "s8",
        DType::U16 | DType::F16 | DType::BF16 => "u16",
        DType::I16 => "s16",
        DType::I32 | DType::F32 => "b32",
        DType::I64 | DType::F64 => "b64",
    }
}

/// The width of a register for one element.
fn register_width(dtype: DType) -> Width {
    if dtype.size() == 8 { Width::B64 } else { Width::B32 }
}

/// Loads one element.
pub(super) fn load(w: &mut Writer, dtype: DType, from: Reg) -> Reg {
    let address = format!("[{from}]");
    w.make(register_width(dtype), &format!("ld.global.{}", memory_type(dtype)), &[&address])
}

/// Stores one element; what its register holds beyond its size does not matter.
pub(super) fn store(w: &mut Writer, dtype: DType, to: Reg, element: Reg) {
    w.line(format_args!("st.global.b{} [{to}], {element};", dtype.size() * 8));
}

/// What lies in `bytes` bytes, in registers of at most 32 bits.
#[derive(Clone)]
pub(super) struct Words {
    words: Vec<Reg>,
}

impl Words {
    /// Loads a vector from `offset` bytes after an address that is a multiple of `bytes`.
    pub(super) fn load(w: &mut Writer, only: Option<Reg>, bytes: usize, from: Reg, offset: usize) -> Words {
        let width = if bytes == 2 { Width::B16 } else { Width::B32 };
        let words: Vec<Reg> = (0..bytes.div_ceil(4)).map(|_| w.reg(width)).collect();
        let (shape, list) = shape(&words);
        w.line_if(only, format_args!("ld.global.{shape} {list}, [{from}+{offset}];"));
        Words { words }
    }

    /// Stores it to `offset` bytes after an address that is a multiple of its size.
    pub(super) fn store(&self, w: &mut Writer, only: Option<Reg>, to: Reg, offset: usize) {
        let (shape, list) = shape(&self.words);
        w.line_if(only, format_args!("st.global.{shape} [{to}+{offset}], {list};"));
    }

    /// The elements in it, each in its own register.
    pub(super) fn elements(&self, w: &mut Writer, dtype: DType) -> Vec<Reg> {
        let signed = matches!(dtype, DType::I8 | DType::I16);
        let extract = if signed { "bfe.s32" } else { "bfe.u32" };
        match dtype.size() {
            8 => self
                .words
                .chunks_exact(2)
                .map(|halves| {
                    let both = format!("{{{}, {}}}", halves[0], halves[1]);
                    w.make(Width::B64, "mov.b64", &[&both])
                })
                .collect(),
            4 => self.words.clone(),
            size => {
                let bits = 8 * size;
                let mut elements = Vec::new();
                for &word in &self.words {
                    for at in (0..32).step_by(bits) {
                        elements.push(w.make(Width::B32, extract, &[&word, &at, &bits]));
                    }
                }
                elements
            }
        }
    }

    /// The vector of these elements, a whole number of words.
    pub(super) fn of(w: &mut Writer, dtype: DType, elements: &[Reg]) -> Words {
        let words = match dtype.size() {
            8 => {
                let mut words = Vec::new();
                for element in elements {
                    let (low, high) = (w.reg(Width::B32), w.reg(Width::B32));
                    w.line(format_args!("mov.b64 {{{low}, {high}}}, {element};"));
                    words.extend([low, high]);
                }
                words
            }
            4 => elements.to_vec(),
            2 => elements.chunks_exact(2).map(|two| join(w, two[0], two[1], PAIRS)).collect(),
            _ => elements
                .chunks_exact(4)
                .map(|four| {
                    let low = join(w, four[0], four[1], BYTES);
                    let high = join(w, four[2], four[3], BYTES);
                    join(w, low, high, PAIRS)
                })
                .collect(),
        };
        Words { words }
    }
}

/// How `prmt` picks the bytes of a word from those of two others: the two lowest of each, and the lowest of each.
const PAIRS: &str = "0x5410";
const BYTES: &str = "0x0040";

fn join(w: &mut Writer, low: Reg, high: Reg, pick: &str) -> Reg {
    w.make(Width::B32, "prmt.b32", &[&low, &high, &pick])
}

/// The type of a vector in memory, and its registers as an operand.
fn shape(words: &[Reg]) -> (String, String) {
    let kind = words[0].width.bits();
    match words {
        [word] => (kind.to_string(), word.to_string()),
        words => {
            let list: Vec<String> = words.iter().map(Reg::to_string).collect();
            (format!("v{}.{kind}", words.len()), format!("{{{}}}", list.join(", ")))
        }
    }
}
