//! Signals to the launcher reach the ranks.

use std::time::Instant;

use rustix::process::Signal;

use crate::job::{GRACE, Job, killed_by, patient_script};

#[test]
fn signals_are_passed_on_and_show_in_the_exit_status() {
    for (signal, name, code) in
        [(Signal::INT, "INT", 130), (Signal::TERM, "TERM", 143), (Signal::HUP, "HUP", 129)]
    {
        let script = format!("trap 'echo heard {name}; exit 0' {name}; echo ready; sleep 1000 & wait");
        let mut job = Job::start(&mut patient_script(2, &script));
        job.await_words("ready", 2);
        job.signal(signal);
        let started = Instant::now();
        let outcome = job.end();
        assert_eq!(outcome.code(), Some(code), "{outcome:?}");
        let heard = format!("heard {name}");
        assert_eq!(outcome.stdout.matches(&heard).count(), 2, "{outcome:?}");
        assert!(!outcome.stderr.contains("failed"), "nobody failed: {}", outcome.stderr);
        assert!(started.elapsed() < GRACE, "{:?}", started.elapsed());
    }
}

#[test]
fn a_second_interrupt_kills_ranks_that_ignore_the_first() {
    let script = "trap 'echo not yet' INT; echo ready; while :; do sleep 1; done";
    let mut job = Job::start(&mut patient_script(2, script));
    job.await_words("ready", 2);
    job.signal(Signal::INT);
    job.await_words("not yet", 2);
    job.signal(Signal::INT);
    let started = Instant::now();
    let status = job.status();
    assert_eq!((status.code(), killed_by(status)), (Some(130), None));
    assert!(started.elapsed() < GRACE, "{:?}", started.elapsed());
    job.gone_after();
}

#[test]
fn a_job_started_with_nohup_outlives_its_terminal() {
    let binary = env!("CARGO_BIN_EXE_ronde");
    let script = "trap '' HUP; exec \"$0\" run -q -np 1 sh -c 'echo ready; sleep 0.5; echo finished'";
    let mut job = Job::start(std::process::Command::new("sh").args(["-c", script, binary]));
    job.await_words("ready", 1);
    job.signal(Signal::HUP);
    let outcome = job.end();
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), "[0] finished\n"));
}
