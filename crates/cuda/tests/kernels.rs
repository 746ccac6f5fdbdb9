//! Every kernel goes through CUDA's own assembler, for the oldest GPUs it still knows and for newer ones, and none of
//! them keeps values in memory for want of registers. What they compute is checked on a GPU, by
//! `tests/gpu/kernels_check.py`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

use ronde_cuda::kernel::Kernel;

const ARCHITECTURES: [&str; 3] = ["sm_75", "sm_90", "sm_120"];

/// Registers of a thread of which four blocks fit a multiprocessor, and two.
const REGISTERS: (u32, u32) = (64, 128);

/// What the assembler says of one kernel.
#[derive(Debug, Default)]
struct Verdict {
    stack: u32,
    registers: u32,
}

#[test]
fn every_kernel_assembles_and_stays_in_its_registers() {
    let assembler = env::var_os("RONDE_PTXAS").map(PathBuf::from).unwrap_or_else(|| {
        panic!("RONDE_PTXAS is not set; run this with RONDE_PTXAS=\"$(tools/ptxas)\"");
    });
    let kernels = Kernel::every(&[1, 2, 3, 4, 8, 16]);
    let text = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels.ptx");
    fs::write(&text, together(&kernels)).expect("the folder for tests can be written to");
    let verdicts: Vec<_> = thread::scope(|scope| {
        ARCHITECTURES
            .map(|architecture| scope.spawn(|| assemble(&assembler, architecture, &text)))
            .map(|running| running.join().expect("the assembler ran"))
            .into()
    });
    for (architecture, verdicts) in ARCHITECTURES.iter().zip(verdicts) {
        for kernel in &kernels {
            let name = kernel.entry();
            let verdict =
                verdicts.get(&name).unwrap_or_else(|| panic!("{name} is missing for {architecture}"));
            assert_eq!(verdict.stack, 0, "{name} spills on {architecture}");
            let many = matches!(kernel, Kernel::Fold { sources, .. } if *sources > 8);
            let most = if many { REGISTERS.1 } else { REGISTERS.0 };
            assert!((1..=most).contains(&verdict.registers), "{name} on {architecture}: {verdict:?}");
        }
    }
}

/// All kernels in one module, since starting the assembler takes longer than most of them do. They agree on what
/// comes before the entry.
fn together(kernels: &[Kernel]) -> String {
    let mut module = String::new();
    for kernel in kernels {
        let source = kernel.source();
        let entry = source.find(".visible").expect("every module has an entry");
        if module.is_empty() {
            module.push_str(&source[..entry]);
        }
        assert!(module.starts_with(&source[..entry]));
        write!(module, "{}", &source[entry..]).expect("writing to a string does not fail");
    }
    module
}

/// Runs the assembler, which tells of each kernel in lines that begin with its name.
fn assemble(assembler: &Path, architecture: &str, text: &Path) -> BTreeMap<String, Verdict> {
    let output = Command::new(assembler)
        .args(["--verbose", "--gpu-name", architecture, "--output-file"])
        .arg(text.with_extension(architecture))
        .arg(text)
        .output()
        .unwrap_or_else(|error| panic!("{} does not run: {error}", assembler.display()));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{architecture}: {said}");
    let mut verdicts: BTreeMap<String, Verdict> = BTreeMap::new();
    let mut current = String::new();
    for line in said.lines() {
        if let Some((_, rest)) = line.split_once("entry function '") {
            current = rest.split('\'').next().unwrap_or_default().into();
            verdicts.insert(current.clone(), Verdict::default());
        }
        if let Some(verdict) = verdicts.get_mut(&current) {
            verdict.stack += ["stack frame", "spill stores", "spill loads"]
                .iter()
                .filter_map(|what| number(line, &format!(" bytes {what}")))
                .sum::<u32>();
            verdict.registers = number(line, " registers").unwrap_or(verdict.registers);
        }
    }
    verdicts
}

/// The number right before some words in a line.
fn number(line: &str, words: &str) -> Option<u32> {
    line[..line.find(words)?].rsplit(' ').next()?.parse().ok()
}
