//! Ranks that really join: this test binary itself is their program, in the role it is told.

use std::path::Path;
use std::process::Command;

use ronde_rendezvous::{Client, Error, JobSpec};
use rustix::process::{Signal, getpid, kill_process};

use crate::job::{Folder, Job, Outcome, outcome, ronde, wait_until};

const ROLE: &str = "RONDE_TEST_ROLE";
/// The file that a late rank waits for before it joins.
const GO: &str = "RONDE_TEST_GO";

/// A job of two ranks, in the given role.
fn job(role: &str) -> Command {
    let program = std::env::current_exe().expect("this binary");
    let mut command = ronde(&["run", "-np", "2"]);
    command.arg(program).args(["--exact", "joining::plays_its_role_as_a_rank", "--nocapture"]);
    command.env(ROLE, role);
    command
}

fn run(role: &str) -> Outcome {
    outcome(&mut job(role))
}

/// Not a test of its own: what a rank does that was started with a role.
#[test]
fn plays_its_role_as_a_rank() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let spec = JobSpec::from_environment(|name| std::env::var(name).ok());
    let spec = spec.expect("valid environment").expect("a job");
    std::process::exit(play(&role, &spec));
}

/// Joins; gives also the folders of all ranks in `/proc`.
fn join(spec: &JobSpec) -> Result<(Client, Vec<String>), Error> {
    let own = format!("/proc/{}", getpid().as_raw_nonzero());
    let (client, folders) = Client::join(spec, |_| own.into_bytes(), &|| false)?;
    Ok((client, folders.into_iter().map(|folder| String::from_utf8(folder).expect("text")).collect()))
}

fn play(role: &str, spec: &JobSpec) -> i32 {
    let second = spec.place.rank == 1;
    match role {
        "late" if second => {
            let go = std::env::var_os(GO).expect("a file");
            wait_until("it may not go on", || Path::new(&go).exists());
        }
        "absent" if second => return 0,
        _ => {}
    }
    let (client, folders) = match join(spec) {
        Ok(joined) => joined,
        Err(error) => {
            println!("cannot join: {error}");
            return 1;
        }
    };
    match role {
        "killed" if second => {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        // As Python does after an exception: goodbye first, then a while to wind down, in which the other has ended.
        "raises" if second => {
            client.leave();
            wait_until("the other rank does not end", || !Path::new(&folders[0]).exists());
            return 7;
        }
        _ => {}
    }
    match client.exchange("step", vec![], &|| false) {
        Ok(_) => {
            client.leave();
            0
        }
        Err(error) => {
            println!("step failed: {error}");
            1
        }
    }
}

#[test]
fn ranks_that_join_and_leave_end_well() {
    let outcome = run("good");
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "only the header: {}", outcome.stderr);
}

#[test]
fn a_late_rank_is_named_while_the_other_waits() {
    let folder = Folder::new("late");
    let job = Job::start(job("late").env(GO, folder.0.join("go")));
    job.await_said("waiting for rank 1 to call init() (rank 0 has waited ");
    folder.file("go", "");
    let outcome = job.end();
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("all 2 ranks have called init() now"), "{}", outcome.stderr);
}

#[test]
fn a_killed_rank_is_named_to_the_others_with_the_signal() {
    let outcome = run("killed");
    assert_eq!(outcome.code(), Some(137), "{outcome:?}");
    assert!(outcome.stderr.contains("rank 1 on localhost failed first: killed by signal 9"));
    let lost = outcome.stdout.contains("was lost: killed by signal 9 (SIGKILL)");
    // The other rank may be stopped before it has said so.
    assert!(lost || outcome.stderr.contains("the other rank was stopped"), "{outcome:?}");
}

#[test]
fn a_rank_that_fails_because_another_did_is_not_named_first() {
    let outcome = run("raises");
    assert_eq!(outcome.code(), Some(7), "{outcome:?}");
    let first = "error: rank 1 on localhost failed first: exit status 7";
    assert!(outcome.stderr.contains(first), "{}", outcome.stderr);
}

#[test]
fn waiting_for_a_rank_that_ended_without_joining_fails_at_once() {
    let outcome = run("absent");
    assert_eq!(outcome.code(), Some(1), "{outcome:?}");
    let told = "rank 1 was lost: exit status 0 before it called init()";
    assert!(outcome.stdout.contains(told), "{}", outcome.stdout);
}

#[test]
fn ctrl_c_while_waiting_in_init_ends_the_job() {
    let folder = Folder::new("never");
    let job = Job::start(job("late").env(GO, folder.0.join("go")));
    // Both ranks are started once there are two more than the four of ours.
    wait_until("the ranks do not start", || job.processes().len() >= 4 + 2);
    job.signal(Signal::INT);
    assert_eq!(job.end().code(), Some(130));
}
