//! `ronde doctor` and `ronde setup-ssh`, on this machine and with a pretended `ssh`; tests/launch has real hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use crate::job::{Folder, Job, Outcome, outcome, ronde, wait_until};

/// An `ssh` that answers what its configuration is, and refuses every login with these words.
fn refusing_ssh(folder: &Folder, words: &str) -> PathBuf {
    let configuration = "echo 'user anna'; echo 'hostname 192.0.2.7'; echo 'proxycommand x'";
    let refusal = format!("echo '{words}' >&2; exit 255");
    script(folder, &format!("[ \"$1\" = -G ] && {{ {configuration}; exit 0; }}\n{refusal}"))
}

fn script(folder: &Folder, text: &str) -> PathBuf {
    let program = folder.file("ssh", &format!("#!/bin/sh\n{text}\n"));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    program
}

/// Runs in a folder of its own, which must be as empty afterwards as before.
fn run(name: &str, words: &str, arguments: &[&str]) -> Outcome {
    let (work, tools) = (Folder::new(name), Folder::new(&format!("{name}-tools")));
    let ssh = refusing_ssh(&tools, words);
    let outcome = outcome(ronde(arguments).current_dir(&work.0).env("RONDE_SSH", ssh));
    assert_eq!(fs::read_dir(&work.0).expect("the folder").count(), 0, "something was left behind");
    outcome
}

#[test]
fn the_doctor_examines_this_machine_for_programs() {
    let outcome = run("doctor-json", "", &["doctor", "--json"]);
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!((&report["schema"], &report["healthy"]), (&Value::from(1), &Value::from(true)));
    let host = &report["hosts"][0];
    assert_eq!((&host["name"], &host["this_machine"]), (&Value::from("localhost"), &Value::from(true)));
    assert_eq!((&host["login"], &host["agent"]), (&Value::from("skipped"), &Value::from("good")));
    let findings = &host["findings"];
    assert_eq!(findings["folder"], Value::from("shared"));
    for field in ["cores", "memory", "open_files"] {
        assert!(findings[field].as_u64().is_some_and(|value| value > 0), "{field} in {findings}");
    }
    assert!(host["clock_ahead"].as_f64().is_some_and(|ahead| ahead.abs() < 1.0), "{host}");
}

#[test]
fn the_doctor_shows_a_table_and_the_fix_of_every_problem() {
    let words = "anna@gpu2: Permission denied (password).";
    let outcome = run("doctor-table", words, &["doctor", "-H", "localhost:1,gpu2:1", "-p", "12345"]);
    assert_eq!(outcome.code(), Some(1), "{outcome:?}");
    let rows: Vec<&str> = outcome.stdout.lines().collect();
    assert!(rows[0].trim_start().starts_with("name  port  host key  login  ronde  python"), "{outcome:?}");
    assert!(rows[1].starts_with("  localhost  –     –     –         –      0.1.0"), "{outcome:?}");
    assert!(rows[2].starts_with("  gpu2       –     –     ✓         ✗      –"), "{outcome:?}");
    let message = "  gpu2 (port 12345) takes no keys, only passwords, for user anna; a launcher cannot type one\n        \
                   fix:  ronde setup-ssh -H gpu2 -p 12345\n";
    assert!(outcome.stdout.contains(message), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("gpu2 could not be examined"), "{outcome:?}");
    assert!(outcome.stderr.contains("localhost examined"), "{outcome:?}");
}

#[test]
fn an_interrupted_doctor_leaves_nothing_behind() {
    let (work, tools) = (Folder::new("doctor-cut"), Folder::new("doctor-cut-tools"));
    let hangs = "[ \"$1\" = -G ] && exit 0\n: > \"$0.started\"\nsleep 1000"; // sleep: until it is killed
    let hanging = script(&tools, hangs);
    let mut job =
        Job::start(ronde(&["doctor", "-H", "192.0.2.7"]).current_dir(&work.0).env("RONDE_SSH", hanging));
    wait_until("ssh was never started", || tools.0.join("ssh.started").exists());
    assert_eq!(fs::read_dir(&work.0).expect("the folder").count(), 1, "the mark for shared folders");
    job.signal(Signal::INT);
    assert_eq!(job.status().code(), Some(130));
    assert_eq!(fs::read_dir(&work.0).expect("the folder").count(), 0, "something was left behind");
    job.await_gone();
}

#[test]
fn setting_up_says_for_every_host_whether_it_is_ready() {
    let words = "ssh: connect to host gpu2 port 22: Connection refused";
    let outcome = run("setup", words, &["setup-ssh", "-H", "localhost,gpu2", "--user", "anna"]);
    assert_eq!(outcome.code(), Some(1), "{outcome:?}");
    assert!(
        outcome.stdout.starts_with(
            "  anna@localhost  ready      this machine, no ssh needed\n  anna@gpu2       NOT READY  see below\n\n\
             error: anna@gpu2 (port 22) refused the connection: nothing listens there\n"
        ),
        "{outcome:?}"
    );
}

#[test]
fn hosts_that_are_already_set_up_are_left_alone() {
    let (work, tools) = (Folder::new("set-up"), Folder::new("set-up-tools"));
    let welcoming = script(&tools, "exit 0");
    let outcome =
        outcome(ronde(&["setup-ssh", "-H", "gpu2"]).env("RONDE_SSH", welcoming).env("HOME", &work.0));
    assert_eq!(
        (outcome.code(), outcome.stdout.as_str()),
        (Some(0), "  gpu2  ready      was set up before\n")
    );
    assert_eq!(fs::read_dir(&work.0).expect("the home").count(), 0, "a key was made for nothing");
}

#[test]
fn setting_up_needs_hosts() {
    let outcome = outcome(&mut ronde(&["setup-ssh"]));
    assert_eq!(outcome.code(), Some(2), "{outcome:?}");
    assert_eq!(
        outcome.stderr,
        "error: it is not said which hosts\nhint: name them: -H gpu1,gpu2, or in a file: --hostfile FILE\n"
    );
}
