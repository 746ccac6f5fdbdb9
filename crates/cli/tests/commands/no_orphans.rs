//! Whatever is killed, nothing of the job is left: not the ranks, not their children, not those
//! that forked twice and took a session of their own.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::job::{Job, all_processes, children_of, patient_script, run_script, wait_until};

/// A rank with a child in its group and a daemon that left group, session and parent.
const FAMILY: &str = "stay() { exec sleep 1000; }; stay & # sleep: is there until it is killed
                      setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 & exit' & # sleep: likewise
                      echo ready; wait; stay";

fn family() -> Job {
    let mut job = Job::start(&mut patient_script(2, FAMILY));
    job.await_words("ready", 2);
    // Four of ours, and of each rank four.
    wait_until("some are missing", || job.processes().len() >= 4 + 2 * 4);
    job
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("it is there");
}

#[test]
fn killing_the_launcher_leaves_nothing() {
    let job = family();
    kill(job.launcher());
    job.await_gone();
}

#[test]
fn killing_the_driver_leaves_nothing_and_is_reported() {
    let job = family();
    kill(job.driver());
    job.await_gone();
    let outcome = job.end();
    assert_eq!(outcome.code(), Some(137), "{outcome:?}");
    assert!(outcome.stderr.contains("all ranks were stopped"), "{}", outcome.stderr);
}

#[test]
fn killing_the_agent_or_its_guardian_leaves_nothing_and_is_reported() {
    for (whom, words) in [
        (Job::agent as fn(&Job) -> Pid, "lost localhost (ranks 0 and 1): the agent was killed by signal 9"),
        (Job::guardian, "lost localhost (ranks 0 and 1): its guardian was killed"),
    ] {
        let job = family();
        kill(whom(&job));
        job.await_gone();
        let outcome = job.end();
        assert_eq!(outcome.code(), Some(1), "{outcome:?}");
        assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    }
}

#[test]
fn killing_the_agent_and_its_guardian_at_once_leaves_nothing() {
    let job = family();
    let (agent, guardian) = (job.agent(), job.guardian());
    // Stopped, neither can react to the other's end.
    for pid in [agent, guardian] {
        kill_process(pid, Signal::STOP).expect("it is there");
    }
    kill(agent);
    kill(guardian);
    job.await_gone();
}

#[test]
fn killing_the_launchers_whole_group_leaves_nothing() {
    use std::os::unix::process::CommandExt;
    let mut job = Job::start(patient_script(2, FAMILY).process_group(0));
    job.await_words("ready", 2);
    kill_process_group(job.launcher(), Signal::KILL).expect("it is there");
    job.await_gone();
}

#[test]
fn a_killed_rank_takes_its_daemons_along_at_the_end() {
    let mut job = family();
    kill(*children_of(job.agent()).first().expect("a rank"));
    assert_eq!(job.status().code(), Some(137));
    assert!(job.processes().is_empty(), "gone before the launcher itself");
}

#[test]
fn daemons_do_not_outlive_a_job_that_ends_well() {
    // The pipe ends when the daemon, which is in its own session by then, lets go of it.
    let script = "setsid -f sh -c 'exec sleep 1000 > /dev/null 2>&1' | cat"; // sleep: is there until it is killed
    let mut job = Job::start(&mut run_script(2, script));
    assert_eq!(job.status().code(), Some(0));
    assert!(job.processes().is_empty(), "gone before the launcher itself");
}

#[test]
fn a_rank_that_forks_all_the_time_cannot_outrun_the_end() {
    let script = "echo ready; while :; do
                    setsid sh -c 'setsid sleep 1000 &' & # sleep: is there until it is killed
                    sleep 0.005 # sleep: or it takes the whole machine
                  done";
    let mut job = Job::start(&mut run_script(2, script));
    job.await_words("ready", 2);
    wait_until("they do not fork", || job.processes().len() > 4 + 2 * 20);
    kill(job.launcher());
    job.await_gone();
    // A process that one look missed keeps forking, so a later look finds it.
    for _ in 0..20 {
        assert!(job.processes().is_empty(), "a process was found again");
    }
}

#[test]
fn nothing_holds_the_job_when_its_output_is_stuck_and_the_launcher_is_killed() {
    // Nobody reads, so the pipe fills up and the output thread is held up in it.
    let job = Job::start(&mut patient_script(2, "while echo more; do :; done"));
    job.await_full_stdout();
    kill(job.launcher());
    job.await_gone();
}

#[test]
fn children_the_launcher_had_before_are_spared() {
    let binary = env!("CARGO_BIN_EXE_ronde");
    let script = "sleep 1000 & # sleep: is there until it is killed
                  echo pid $!; exec \"$0\" run -q -np 1 echo ran";
    let mut command = std::process::Command::new("sh");
    let mut job = Job::start(command.args(["-c", script, binary]));
    let line = job.line();
    let bystander: i32 = line.trim_start_matches("pid ").parse().expect("a process id");
    let bystander = Pid::from_raw(bystander).expect("positive");
    job.await_words("ran", 1);
    assert_eq!(job.status().code(), Some(0));
    assert!(all_processes().contains(&bystander));
    kill(bystander);
}
