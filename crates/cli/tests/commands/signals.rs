//! Signals to the launcher reach the ranks.

use rustix::process::Signal;

use crate::job::{Folder, Job, await_file, killed_by, patient_script};

#[test]
fn signals_are_passed_on_and_show_in_the_exit_status() {
    for (signal, name, code) in
        [(Signal::INT, "INT", 130), (Signal::TERM, "TERM", 143), (Signal::HUP, "HUP", 129)]
    {
        let waits = "sleep 1000 & wait"; // sleep: runs until it is stopped
        let script = format!("trap 'echo heard {name}; exit 0' {name}; echo ready; {waits}");
        let mut job = Job::start(&mut patient_script(2, &script));
        job.await_words("ready", 2);
        job.signal(signal);
        let outcome = job.end();
        assert_eq!(outcome.code(), Some(code), "{outcome:?}");
        let heard = format!("heard {name}");
        assert_eq!(outcome.stdout.matches(&heard).count(), 2, "{outcome:?}");
        assert!(!outcome.stderr.contains("failed"), "nobody failed: {}", outcome.stderr);
    }
}

#[test]
fn a_second_interrupt_kills_ranks_that_ignore_the_first() {
    let script = "trap 'echo not yet' INT; echo ready
                  while :; do sleep 1; done"; // sleep: runs until it is killed
    let mut job = Job::start(&mut patient_script(2, script));
    job.await_words("ready", 2);
    job.signal(Signal::INT);
    job.await_words("not yet", 2);
    job.signal(Signal::INT);
    let status = job.status();
    assert_eq!((status.code(), killed_by(status)), (Some(130), None));
    job.await_gone();
}

#[test]
fn a_job_started_with_nohup_outlives_its_terminal() {
    let binary = env!("CARGO_BIN_EXE_ronde");
    let folder = Folder::new("nohup");
    let rank = format!("echo ready\n{}echo finished", await_file(&folder.0.join("go")));
    let script = "trap '' HUP; exec \"$0\" run -q -np 1 sh -c \"$1\"";
    let mut job = Job::start(std::process::Command::new("sh").args(["-c", script, binary, &rank]));
    job.await_words("ready", 1);
    job.signal(Signal::HUP);
    folder.file("go", "");
    let outcome = job.end();
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), "[0] finished\n"));
}
