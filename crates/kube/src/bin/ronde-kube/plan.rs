//! `ronde kube plan`: the cluster as a table, with the shares that a job would get drawn in it.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use ronde_kube::Error;
use ronde_placement::{Paper, Refusal, Snapshot, draw_plan, draw_refusal};
use serde_json::json;

use crate::args::KubePlanArgs;
use crate::{anywhere, block_on, refuse, wishes};

pub(crate) fn plan(args: &KubePlanArgs) -> ExitCode {
    let (snapshot, remarks) = match look(args) {
        Ok(seen) => seen,
        Err(error) => return refuse(&error),
    };
    for remark in remarks {
        let _ = writeln!(io::stderr(), "note: {remark}");
    }
    let job = match wishes::job(&args.gpus, "", &[]) {
        Ok(job) => job,
        Err(error) => return refuse(&error),
    };
    let planned = ronde_placement::plan(&snapshot, &ronde_kube::job::request_now(&job));
    let mut out = io::stdout();
    match planned {
        Ok(plan) if args.json => {
            // As it is, and not as a value, whose fields would be in the order of the alphabet.
            let text = serde_json::to_string_pretty(&plan).unwrap_or_default();
            let _ = writeln!(out, "{text}");
            ExitCode::SUCCESS
        }
        Ok(plan) => {
            show(&draw_plan(&plan, &paper()));
            ExitCode::SUCCESS
        }
        Err(refusal) => {
            if args.json {
                let _ = writeln!(out, "{:#}", refused(&refusal));
            } else {
                show(&draw_refusal(&refusal, &paper()));
            }
            let mut errors = io::stderr();
            let _ = writeln!(errors, "error: {}", refusal.headline());
            for help in refusal.help() {
                let _ = writeln!(errors, "hint: {help}");
            }
            ExitCode::FAILURE
        }
    }
}

/// What tables are drawn on: the terminal, or a file.
fn paper() -> Paper {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|_| io::stdout().is_terminal());
    let usual = Paper::default();
    Paper {
        width: size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0).unwrap_or(usual.width),
        ascii: !ronde_launch::is_unicode(|name| std::env::var(name).ok()),
        ..usual
    }
}

fn show(lines: &[String]) {
    let mut out = io::stdout().lock();
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
}

fn refused(refusal: &Refusal) -> serde_json::Value {
    json!({"shares": [], "error": refusal.to_string(), "cause": refusal.cause, "nodes": refusal.nodes})
}

/// The cluster in a file, or the real one.
fn look(args: &KubePlanArgs) -> Result<(Snapshot, Vec<String>), Error> {
    if let Some(path) = &args.snapshot {
        return read(path).map(|snapshot| (snapshot, Vec::new()));
    }
    let (ledger, now) = block_on(async {
        let connection = ronde_kube::connect(&anywhere(&args.context)).await?;
        let ledger = ronde_kube::survey(&connection).await?;
        Ok((ledger, connection.now()))
    })?;
    let snapshot = ledger.free(now).map_err(|error| Error::Never(error.to_string()))?;
    if let Some(path) = &args.save_snapshot {
        let text = serde_json::to_string_pretty(&snapshot).unwrap_or_default();
        fs::write(path, text + "\n").map_err(|error| problem("write", path, error.to_string()))?;
    }
    Ok((snapshot, ronde_kube::remarks(&ledger)))
}

fn read(path: &Path) -> Result<Snapshot, Error> {
    let text = fs::read_to_string(path).map_err(|error| problem("read", path, error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| problem("use", path, error.to_string()))
}

fn problem(doing: &'static str, path: &Path, problem: String) -> Error {
    Error::File { doing, path: path.to_owned(), problem }
}
