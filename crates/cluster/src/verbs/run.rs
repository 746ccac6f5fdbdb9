//! `ronde cluster run`: a job on all machines, started in the master's container.
//!
//! Neither ssh nor docker pass signals on. So the job's input is a line that tells them: a watcher beside it in the
//! container reads the names of signals there, and ends the job when the line is cut, however that came.

use std::io::Write;
use std::process::{ExitCode, Stdio};

use crate::args::RunArgs;
use crate::error::Error;
use crate::folder::Folder;
use crate::inventory::{Cluster, Machine, Way};
use crate::process::Watcher;
use crate::remote::{Asking, UNREACHED, in_container, on_machine};
use crate::verbs::option_for;

/// Runs its words and passes on the signals whose names it reads. With job control, since without it a shell has
/// what it starts in the background ignore interrupts.
const CONVEY: &str = r#"exec 3<&0
set -m
"$@" </dev/null 3<&- &
job=$!
set +m
{ while read -r signal <&3; do kill -s "$signal" "$job"; done; kill -s TERM "$job"; } >/dev/null 2>&1 &
line=$!
wait "$job"
status=$?
kill "$line" 2>/dev/null
exit "$status""#;

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Error> {
    let folder = Folder::find(args.folder.folder.as_deref())?;
    let cluster = folder.cluster()?;
    let watcher = Watcher::new()?;
    let words = conveyed(&launch(&cluster, args.ranks, &args.command));
    let mut command = in_container(cluster.master(), folder.path(), Asking::MayNot, &["-i"], &words);
    let status = watcher.converse(&mut command)?;
    // A job may end with the same, and has said why.
    if i32::from(status) == UNREACHED && !answers(cluster.master(), &folder) {
        let option = option_for(&folder);
        let text = format!(
            "error: the master was not reached\nhint: ronde cluster status{option} says what is down\n"
        );
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    Ok(ExitCode::from(status))
}

/// Whether ssh reaches a machine now. One that is this machine needs no ssh.
fn answers(machine: &Machine, folder: &Folder) -> bool {
    let mut command = on_machine(machine, folder.path(), Asking::MayNot, &["true".to_owned()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    machine.way == Way::Here || command.status().is_ok_and(|status| status.code() != Some(UNREACHED))
}

/// The job's command line.
fn launch(cluster: &Cluster, ranks: Option<usize>, command: &[String]) -> Vec<String> {
    let ranks = ranks.unwrap_or_else(|| cluster.slots()).to_string();
    let port = cluster.ssh_port.to_string();
    let head = ["ronde", "run", "-np", &ranks, "-H", &cluster.hosts(), "-p", &port].map(str::to_owned);
    head.into_iter().chain(command.iter().cloned()).collect()
}

/// A command line with the watcher beside it.
pub(crate) fn conveyed(words: &[String]) -> Vec<String> {
    let head = ["bash", "-c", CONVEY, "ronde"].map(str::to_owned);
    head.into_iter().chain(words.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{ChildStdin, Command, Stdio};

    use super::*;

    #[test]
    fn a_job_has_a_rank_for_every_slot_unless_told_otherwise() {
        let text = "all: {vars: {ssh_port: 2200}, children: {master: {hosts: {m: {}}}, workers: {hosts: {w: {gpus: 2}}}}}";
        let cluster = Cluster::read(text).expect("it reads");
        let command = ["python".to_owned(), "a.py".to_owned()];
        let words = launch(&cluster, None, &command).join(" ");
        assert_eq!(words, "ronde run -np 3 -H m:1,w:2 -p 2200 python a.py");
        assert!(launch(&cluster, Some(2), &command).contains(&"2".to_owned()));
    }

    /// Runs a script beside the watcher, does something when it says that it is ready, and returns its status.
    fn status(script: &str, then: impl FnOnce(ChildStdin) -> Option<ChildStdin>) -> Option<i32> {
        let words = conveyed(&["bash", "-c", script].map(str::to_owned));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("output")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        let line = then(child.stdin.take().expect("input"));
        let status = child.wait().expect("it ends").code();
        drop(line);
        status
    }

    #[test]
    fn status_and_signals_pass_through_and_a_cut_line_ends_the_job() {
        assert_eq!(status("echo ready; exit 7", Some), Some(7));
        let waits = "trap 'exit 42' INT; trap 'exit 43' TERM; echo ready
                     while :; do sleep 0.05; done"; // sleep: it hears signals in between
        let interrupt = |mut input: ChildStdin| {
            input.write_all(b"INT\n").expect("told");
            Some(input)
        };
        assert_eq!(status(waits, interrupt), Some(42));
        assert_eq!(status(waits, |_| None), Some(43));
    }
}
