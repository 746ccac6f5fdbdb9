//! Writes PTX: registers, lines, labels, and at the end the text of a module with one entry.
//!
//! Everything here is about form; what a kernel computes is on the pages that use it. Registers are untyped (PTX lets
//! bits of the right width be operands of any type), so an element can be loaded as bits, added as a float and compared
//! as an integer without a move in between. A register may be written more than once; the compiler in the driver makes
//! its own names anyway.

use std::fmt::{self, Display, Write};

use super::THREADS;

/// How wide a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// True or false.
    Truth,
    /// 16 bits.
    B16,
    /// 32 bits.
    B32,
    /// 64 bits.
    B64,
}

impl Width {
    const ALL: [Width; 4] = [Width::Truth, Width::B16, Width::B32, Width::B64];

    /// The letter its registers begin with, and the type they are declared as.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Width::Truth => ("p", "pred"),
            Width::B16 => ("h", "b16"),
            Width::B32 => ("r", "b32"),
            Width::B64 => ("d", "b64"),
        }
    }

    /// The type for instructions that only move bits.
    pub(super) fn bits(self) -> &'static str {
        self.names().1
    }
}

/// A register, as wide as it was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reg {
    pub(super) width: Width,
    index: usize,
}

impl Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}{}", self.width.names().0, self.index)
    }
}

/// A place to branch to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

impl Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "$L{}", self.0)
    }
}

/// A parameter of the entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Param(usize);

impl Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parameter_{}", self.0)
    }
}

/// An entry in the making.
pub(super) struct Writer {
    blocks: usize,
    lines: String,
    params: Vec<&'static str>,
    registers: [usize; Width::ALL.len()],
    labels: usize,
}

impl Writer {
    /// An entry of which this many blocks are to run on a multiprocessor at a time. Four keep a thread to 64 registers,
    /// two to 128.
    pub(super) fn new(blocks: usize) -> Writer {
        Writer {
            blocks,
            lines: String::new(),
            params: Vec::new(),
            registers: [0; Width::ALL.len()],
            labels: 0,
        }
    }

    /// Declares the next parameter; `kind` is its PTX type.
    pub(super) fn param(&mut self, kind: &'static str) -> Param {
        self.params.push(kind);
        Param(self.params.len() - 1)
    }

    /// Reads a parameter. This costs nothing where it is used (the compiler reads parameters as operands), so it is
    /// better read again than kept in a register.
    pub(super) fn read(&mut self, param: Param) -> Reg {
        let kind = self.params[param.0];
        self.make(Width::B64, &format!("ld.param.{kind}"), &[&format_args!("[{param}]")])
    }

    /// A new register.
    pub(super) fn reg(&mut self, width: Width) -> Reg {
        let count = &mut self.registers[width as usize];
        *count += 1;
        Reg { width, index: *count - 1 }
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// One line as it is.
    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.lines, "    {line}").expect("writing to a string does not fail");
    }

    /// A line that is done where `only` holds, or by all.
    pub(super) fn line_if(&mut self, only: Option<Reg>, line: fmt::Arguments<'_>) {
        match only {
            Some(truth) => self.line(format_args!("@{truth} {line}")),
            None => self.line(line),
        }
    }

    /// `into = op(operands)`.
    pub(super) fn set(&mut self, into: Reg, op: &str, operands: &[&dyn Display]) {
        let mut text = format!("{op} {into}");
        for operand in operands {
            write!(text, ", {operand}").expect("writing to a string does not fail");
        }
        self.line(format_args!("{text};"));
    }

    /// A new register with `op(operands)`.
    pub(super) fn make(&mut self, width: Width, op: &str, operands: &[&dyn Display]) -> Reg {
        let into = self.reg(width);
        self.set(into, op, operands);
        into
    }

    /// Whether `a` and `b` compare as named, for example `lt.s64`.
    pub(super) fn test(&mut self, comparison: &str, a: &dyn Display, b: &dyn Display) -> Reg {
        self.make(Width::Truth, &format!("setp.{comparison}"), &[a, b])
    }

    /// `yes` where `truth` holds, else `no`.
    pub(super) fn choose(&mut self, width: Width, truth: Reg, yes: &dyn Display, no: &dyn Display) -> Reg {
        self.make(width, &format!("selp.{}", width.bits()), &[yes, no, &truth])
    }

    /// `into = from`, which are of one width.
    pub(super) fn assign(&mut self, into: Reg, from: Reg) {
        self.set(into, &format!("mov.{}", into.width.bits()), &[&from]);
    }

    pub(super) fn place(&mut self, label: Label) {
        writeln!(self.lines, "{label}:").expect("writing to a string does not fail");
    }

    pub(super) fn branch(&mut self, to: Label) {
        self.line(format_args!("bra {to};"));
    }

    pub(super) fn branch_if(&mut self, truth: Reg, to: Label) {
        self.line(format_args!("@{truth} bra {to};"));
    }

    /// Does `inner` only where `truth` does not hold.
    pub(super) fn unless(&mut self, truth: Reg, inner: impl FnOnce(&mut Writer)) {
        let over = self.label();
        self.branch_if(truth, over);
        inner(self);
        self.place(over);
    }

    /// The module: this entry and nothing else.
    pub(super) fn module(self, entry: &str) -> String {
        let params: Vec<String> = self
            .params
            .iter()
            .enumerate()
            .map(|(at, kind)| format!("    .param .{kind} {}", Param(at)))
            .collect();
        let registers: String = Width::ALL
            .iter()
            .filter(|&&width| self.registers[width as usize] > 0)
            .map(|&width| {
                let (letter, kind) = width.names();
                format!("    .reg .{kind} %{letter}<{}>;\n", self.registers[width as usize])
            })
            .collect();
        format!(
            ".version 6.4\n.target sm_60\n.address_size 64\n\n.visible .entry {entry}(\n{}\n)\n\
             .maxntid {THREADS}, 1, 1\n.minnctapersm {}\n{{\n{registers}\n{}    ret;\n}}\n",
            params.join(",\n"),
            self.blocks,
            self.lines,
        )
    }
}
