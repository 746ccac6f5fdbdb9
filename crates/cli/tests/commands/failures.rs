//! Jobs that fail: who is named, why, and what happens to the others.

use std::time::{Duration, Instant};

use crate::job::{Folder, Job, await_file, outcome, patient_script, ronde, run_script};

#[test]
fn the_first_rank_to_fail_is_named_with_its_status_and_last_lines_and_the_others_are_stopped() {
    let script = "if [ $HOROVOD_RANK = 1 ]; then
                    { seq -f 'line %.0f' 9; echo the last words; } >&2; exit 3;
                  fi; sleep 1000"; // sleep: runs until it is stopped
    let outcome = outcome(&mut patient_script(3, script));
    assert_eq!(outcome.code(), Some(3));
    let told = &outcome.stderr;
    assert!(told.contains("error: rank 1 on localhost failed first: exit status 3\n"), "{told}");
    assert!(told.contains("    [1] the last words\n"), "{told}");
    assert!(told.contains("    [1] line 9\n") && !told.contains("    [1] line 5\n"), "{told}");
    assert!(told.contains("the other 2 ranks were stopped ("), "{told}");
    assert!(told.contains("nothing is left running on localhost"), "{told}");
    assert!(told.contains("hint: see all output of rank 1 with --output-filename"), "{told}");
}

#[test]
fn a_rank_killed_by_a_signal_is_named_with_it() {
    for (signal, number, name) in [("KILL", 9, "SIGKILL"), ("SEGV", 11, "SIGSEGV")] {
        let script = format!("[ $HOROVOD_RANK = 0 ] && kill -{signal} $$; sleep 1000"); // sleep: runs until it is stopped
        let outcome = outcome(&mut run_script(2, &script));
        assert_eq!(outcome.code(), Some(128 + number), "{outcome:?}");
        let expected = format!("rank 0 on localhost failed first: killed by signal {number} (");
        assert!(outcome.stderr.contains(&expected), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(name), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("the other rank was stopped"), "{}", outcome.stderr);
    }
}

#[test]
fn a_rank_that_ignores_the_request_to_end_is_killed_after_the_grace() {
    let folder = Folder::new("grace");
    let deaf = folder.0.join("deaf");
    // Rank 0 fails only once rank 1 no longer listens.
    let script = format!(
        "if [ $HOROVOD_RANK = 0 ]; then {} exit 4; fi
         trap '' TERM; : > '{}'; while :; do sleep 1; done # sleep: runs until it is killed",
        await_file(&deaf),
        deaf.display()
    );
    let started = Instant::now();
    let mut job = Job::start(&mut run_script(2, &script));
    assert_eq!(job.status().code(), Some(4));
    let took = started.elapsed();
    assert!(took > Duration::from_secs(4), "{took:?}");
    job.await_gone();
}

#[test]
fn a_stopped_rank_is_ended_as_well() {
    let folder = Folder::new("stopped");
    // Rank 0 fails only once rank 1 is stopped. No rank waits for the whole grace period: the request wakes it.
    let script = "if [ $HOROVOD_RANK = 1 ]; then
                    echo $$ > \"$NUMBER\"; kill -STOP $$
                    sleep 1000 # sleep: runs until it is stopped
                  fi
                  until grep -qs '^State:[[:space:]]*T' /proc/$(cat \"$NUMBER\" 2> /dev/null)/status; do
                    sleep 0.01 # sleep: between two looks
                  done
                  exit 6";
    let outcome = outcome(patient_script(2, script).env("NUMBER", folder.0.join("number")));
    assert_eq!(outcome.code(), Some(6), "{outcome:?}");
}

#[test]
fn a_rank_that_is_done_early_is_no_failure() {
    let script = "[ $HOROVOD_RANK = 0 ] && exit 0
                  sleep 0.5 # sleep: nothing may happen now, and nothing says that it has not
                  echo went on";
    let outcome = outcome(&mut run_script(2, script));
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert_eq!(outcome.stdout, "[1] went on\n");
}

#[test]
fn a_single_rank_fails_without_talk_of_others() {
    let outcome = outcome(&mut ronde(&["run", "-q", "-np", "1", "sh", "-c", "exit 9"]));
    assert_eq!(outcome.code(), Some(9));
    assert!(!outcome.stderr.contains("other"), "{}", outcome.stderr);
}
