//! Starting the rank processes: each its own process group, nothing on its input, its output in
//! two pipes.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::Pid;

use crate::Error;
use crate::label::Stream;
use crate::output::Source;
use crate::plan::Plan;

/// Starts one rank; returns its process and its two pipes.
pub(crate) fn start(
    plan: &mut Plan,
    rank: usize,
    variables: Vec<(&'static str, String)>,
) -> Result<(Pid, [Source; 2]), Error> {
    let failed = |source| Error::Start { rank, source };
    let mut command = Command::new(&plan.program);
    if let Some((name, arguments)) = plan.request.command.split_first() {
        // Programs look at the name they were called by: Python finds its environment through it.
        command.arg0(name).args(arguments);
    }
    let mut child = command
        .envs(variables)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let pid = Pid::from_child(&child);
    let missing = || failed(std::io::Error::other("its output has no pipe"));
    let stdout = child.stdout.take().ok_or_else(missing)?;
    let stderr = child.stderr.take().ok_or_else(missing)?;

    let labels = plan.request.labels;
    let files = plan.files[rank].take();
    let (stdout_file, stderr_file) = match files {
        Some(files) => (Some(files.stdout), Some(files.stderr)),
        None => (None, None),
    };
    let source = |stream, pipe, file| Source { rank, stream, pipe, label: labels.text(rank, stream), file };
    Ok((
        pid,
        [
            source(Stream::Stdout, stdout.into(), stdout_file),
            source(Stream::Stderr, stderr.into(), stderr_file),
        ],
    ))
}
