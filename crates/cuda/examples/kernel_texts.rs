//! Writes every kernel's text into a folder, one file each, with `index.json` beside them, for machines that have a GPU
//! but no Rust: `tests/gpu/kernels_check.py` reads that folder there.
//!
//! Usage: `cargo run --package ronde-cuda --example kernel_texts -- FOLDER`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use ronde_cuda::kernel::{Kernel, THREADS};

fn main() -> ExitCode {
    let Some(folder) = env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: kernel_texts FOLDER");
        return ExitCode::from(2);
    };
    match write_all(&folder) {
        Ok(count) => {
            println!("{count} kernels in {}", folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write_all(folder: &Path) -> io::Result<usize> {
    fs::create_dir_all(folder)?;
    let kernels = Kernel::every(&[1, 2, 3, 4, 5, 8, 16]);
    let mut entries = Vec::new();
    for kernel in &kernels {
        fs::write(folder.join(kernel.entry()).with_extension("ptx"), kernel.source())?;
        entries.push(format!("  {{{}}}", described(kernel)));
    }
    let index = format!("{{\"threads\": {THREADS}, \"kernels\": [\n{}\n]}}\n", entries.join(",\n"));
    fs::write(folder.join("index.json"), index)?;
    Ok(kernels.len())
}

/// The members of a kernel's entry in the index.
fn described(kernel: &Kernel) -> String {
    let what = match kernel {
        Kernel::Move => r#""kind": "move""#.into(),
        Kernel::Fill => r#""kind": "fill""#.into(),
        Kernel::Convert { from, to } => format!(r#""kind": "convert", "from": "{from}", "to": "{to}""#),
        Kernel::Fold { dtype, to, fold, sources, scaled } => format!(
            r#""kind": "fold", "dtype": "{dtype}", "to": "{to}", "fold": "{fold}", "sources": {sources}, "scaled": {scaled}"#
        ),
    };
    format!(r#""entry": "{}", {what}"#, kernel.entry())
}
