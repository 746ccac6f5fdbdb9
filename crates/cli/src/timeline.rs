//! `ronde timeline merge`: one trace of the files that several ranks wrote. The files are read and written here; what is
//! made of them is in `trace.rs`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::args::{MergeArgs, TimelineArgs, TimelineVerb};
use crate::status::Status;
use crate::trace::{self, Problem, Trace};

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot read {}: {source}", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("cannot use {}: {problem}", file.display())]
    Unusable { file: PathBuf, problem: Problem },
    #[error("{} and {} are both of rank {rank}", one.display(), other.display())]
    SameRank { rank: u64, one: PathBuf, other: PathBuf },
    #[error("{} is to be written, but is one of the files to merge", file.display())]
    OutIsInput { file: PathBuf },
    #[error("cannot write {}: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
}

impl Error {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Error::SameRank { .. } => Some("give one file of each rank, all of the same run"),
            Error::OutIsInput { .. } => {
                Some("the first name is that of the new file: ronde timeline merge OUT FILE...")
            }
            _ => None,
        }
    }
}

pub(crate) fn timeline(args: &TimelineArgs) -> Status {
    let TimelineVerb::Merge(args) = &args.verb;
    match merge(args) {
        Ok(()) => Status::Success,
        Err(error) => {
            let mut stderr = io::stderr();
            let _ = writeln!(stderr, "error: {error}");
            if let Some(hint) = error.hint() {
                let _ = writeln!(stderr, "hint: {hint}");
            }
            Status::Failure
        }
    }
}

fn merge(args: &MergeArgs) -> Result<(), Error> {
    let mut traces = Vec::with_capacity(args.files.len());
    let mut writers: HashMap<u64, &PathBuf> = HashMap::new();
    for file in &args.files {
        if same_file(file, &args.out) {
            return Err(Error::OutIsInput { file: file.clone() });
        }
        let bytes = fs::read(file).map_err(|source| Error::Read { file: file.clone(), source })?;
        let trace = Trace::read(&bytes).map_err(|problem| Error::Unusable { file: file.clone(), problem })?;
        if let Some(one) = writers.insert(trace.rank, file) {
            return Err(Error::SameRank { rank: trace.rank, one: one.clone(), other: file.clone() });
        }
        if trace.cut_off {
            let name = file.display();
            let _ = writeln!(
                io::stderr(),
                "note: {name} ends in the middle; what it has of whole events is used"
            );
        }
        traces.push(trace);
    }
    let ranks = traces.len();
    let events = trace::merge(traces);
    write(&args.out, &events).map_err(|source| Error::Write { file: args.out.clone(), source })?;
    let noun = if ranks == 1 { "rank" } else { "ranks" };
    // Whoever closed our output early does not want the line.
    let _ = writeln!(
        io::stdout(),
        "{}: {} events of {ranks} {noun}; open it in chrome://tracing or https://ui.perfetto.dev",
        args.out.display(),
        events.len()
    );
    Ok(())
}

/// Whether two names, of which the second need not exist, are the same file.
fn same_file(one: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

fn write(path: &Path, events: &[Value]) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(b"[\n")?;
    for (number, event) in events.iter().enumerate() {
        if number > 0 {
            out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut out, event)?;
    }
    out.write_all(b"\n]\n")?;
    out.flush()
}
