//! What is said about command lines before anything runs, and what ranks are given.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use rustix::process::Pid;

use crate::job::{Folder, Job, all_processes, outcome, ronde, run_script};

/// A command that should fail before anything starts, with this status and these words.
fn refused(command: &mut Command, code: i32, words: &[&str]) {
    let outcome = outcome(command);
    assert_eq!(outcome.code(), Some(code), "{outcome:?}");
    assert_eq!(outcome.stdout, "", "nothing ran");
    for word in words {
        assert!(outcome.stderr.contains(word), "{word:?} not in {}", outcome.stderr);
    }
}

#[test]
fn version_and_help_are_given_on_standard_output() {
    let version = outcome(&mut ronde(&["--version"]));
    assert_eq!(version.stdout, format!("ronde {}\n", env!("CARGO_PKG_VERSION")));
    let help = outcome(&mut ronde(&["run", "--help"]));
    assert_eq!(help.code(), Some(0));
    assert!(help.stdout.contains("-np N") && help.stdout.contains("Exit status"));
}

#[test]
fn wrong_usage_exits_with_2_and_suggests_what_was_meant() {
    refused(&mut ronde(&["run", "-np", "2", "--verbos", "true"]), 2, &["--verbose"]);
    refused(&mut ronde(&["rum", "-np", "2", "true"]), 2, &["run"]);
    refused(&mut ronde(&["run", "-np", "two", "true"]), 2, &["two"]);
    refused(&mut ronde(&["run", "-np", "2"]), 2, &["COMMAND"]);
    let mut nowhere = ronde(&["run", "true"]);
    refused(nowhere.env_remove("LSB_JOBID").env_remove("SLURM_JOB_NODELIST"), 2, &["--num-proc"]);
}

#[test]
fn ranks_that_do_not_fit_are_refused_with_the_arithmetic() {
    refused(
        &mut ronde(&["run", "-np", "4", "-H", "localhost:2,127.0.0.1:1", "true"]),
        1,
        &["error: 4 ranks do not fit: the hosts have localhost 2 + 127.0.0.1 1 = 3 slots", "hint:"],
    );
    refused(&mut ronde(&["run", "-np", "0", "true"]), 1, &["at least 1 rank"]);
}

#[test]
fn a_host_that_does_not_exist_is_refused_by_name() {
    refused(
        &mut ronde(&["run", "-np", "2", "-H", "localhost:1,gpu7.invalid:1", "true"]),
        1,
        &["error: ", "gpu7.invalid", "hint: "],
    );
}

#[test]
fn a_command_that_cannot_run_is_refused_before_anything_starts() {
    let folder = Folder::new("programs");
    folder.file("train.py", "print('hello')\n");
    folder.file("tool", "#!/bin/sh\n");
    let inside = |name: &str, words: &[&str]| {
        refused(ronde(&["run", "-np", "2", name]).current_dir(&folder.0), 1, words);
    };
    inside("no-such-program", &["cannot find the command \"no-such-program\"", "hint:"]);
    inside("./no-such-file", &["cannot find the command"]);
    inside("train.py", &["hint:", "write: python train.py"]);
    inside("./train.py", &["not marked as executable", "write: python ./train.py"]);
    inside("./tool", &["chmod +x ./tool"]);
    inside("/", &["it is a folder"]);
}

#[test]
fn a_script_without_an_interpreter_runs_as_it_does_in_a_shell() {
    let folder = Folder::new("no-interpreter");
    let script = folder.file("train", "echo hello\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    let outcome = outcome(&mut ronde(&["run", "-q", "-np", "2", &script.to_string_lossy()]));
    assert_eq!((outcome.code(), outcome.stdout.matches("hello").count()), (Some(0), 2), "{outcome:?}");
}

#[test]
fn a_job_runs_from_a_folder_that_was_deleted() {
    let folder = Folder::new("deleted");
    let binary = env!("CARGO_BIN_EXE_ronde");
    let script = "rmdir \"$PWD\" && exec \"$0\" run -q -np 2 echo fine";
    let outcome = outcome(Command::new("sh").args(["-c", script, binary]).current_dir(&folder.0));
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert_eq!(outcome.stdout.matches("fine").count(), 2, "{outcome:?}");
}

#[test]
fn called_as_horovodrun_it_behaves_as_horovods_launcher() {
    let folder = Folder::new("horovodrun");
    let link = folder.0.join("horovodrun");
    symlink(env!("CARGO_BIN_EXE_ronde"), &link).expect("link");
    let script = "echo out; echo err >&2";
    let outcome = outcome(Command::new(&link).args(["-np", "1", "-H", "localhost:4", "sh", "-c", script]));
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert_eq!(outcome.stdout, "[0]<stdout>:out\n");
    assert_eq!(outcome.stderr, "[0]<stderr>:err\n", "and no header");
}

#[test]
fn ranks_find_their_place_in_their_environment() {
    let script = "echo $HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE \
                  $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE $HOROVOD_HOSTNAME $RONDE_START_TIMEOUT";
    let outcome = outcome(&mut ronde(&[
        "run",
        "--no-prefix",
        "--start-timeout",
        "7",
        "-H",
        "localhost:2,127.0.0.1",
        "sh",
        "-c",
        script,
    ]));
    let mut lines: Vec<&str> = outcome.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0/3 0/2 0/2 localhost 7", "1/3 1/2 0/1 localhost 7", "2/3 0/1 1/2 127.0.0.1 7",]);
}

#[test]
fn horovods_variable_for_the_start_counts_unless_the_flag_is_given() {
    let given = |value: &str, flags: &[&str]| {
        let words =
            [&["run", "-q", "--no-prefix", "-np", "1"], flags, &["sh", "-c", "echo $RONDE_START_TIMEOUT"]];
        outcome(ronde(&words.concat()).env("HOROVOD_START_TIMEOUT", value).env_remove("RONDE_START_TIMEOUT"))
    };
    assert_eq!(given("45", &[]).stdout, "45\n");
    assert_eq!(given("45", &["--start-timeout", "7"]).stdout, "7\n");
    assert_eq!(given("", &[]).stdout, "\n", "an empty value is none");
    let wrong = given("soon", &[]);
    assert_eq!(wrong.stdout, "600\n", "{}", wrong.stderr);
    let expected =
        "warning: HOROVOD_START_TIMEOUT=soon is not a positive number of seconds; 600 is used instead\n";
    assert_eq!(wrong.stderr, expected);
}

#[test]
fn threads_are_divided_unless_the_user_has_decided() {
    let script = "echo $OMP_NUM_THREADS";
    let mut command = run_script(64, script);
    let divided = outcome(command.env_remove("OMP_NUM_THREADS"));
    let threads = std::thread::available_parallelism().map_or(1, usize::from) / 64;
    let line = format!("[63] {}", threads.max(1));
    assert!(divided.stdout.lines().any(|shown| shown == line), "{}", divided.stdout);
    let decided = outcome(run_script(1, script).env("OMP_NUM_THREADS", "11"));
    assert_eq!(decided.stdout, "[0] 11\n");
}

#[test]
fn the_header_and_verbose_words_come_when_asked_for() {
    let header = format!("ronde {} · 2 ranks on 1 host · job ", env!("CARGO_PKG_VERSION"));
    let normal = outcome(&mut run_script(2, "true"));
    assert!(normal.stderr.starts_with(&header), "{}", normal.stderr);
    assert_eq!(normal.stderr.lines().count(), 1, "{}", normal.stderr);
    let quiet = outcome(&mut ronde(&["run", "-q", "-np", "2", "true"]));
    assert_eq!(quiet.stderr, "");
    let mut verbose = ronde(&["run", "--verbose", "-np", "2", "true"]);
    let verbose = outcome(verbose.env_remove("OMP_NUM_THREADS"));
    for words in ["rank 0 is process", "rank 1 is process", "OMP_NUM_THREADS="] {
        assert!(verbose.stderr.contains(words), "{words:?} not in {}", verbose.stderr);
    }
}

#[test]
fn the_secret_is_in_no_argument_and_no_environment() {
    let script = "cat $RONDE_SECRET_FILE; echo; echo $RONDE_SECRET_FILE; echo ready
                  sleep 1000"; // sleep: runs until it is killed
    let mut job = Job::start(&mut run_script(1, script));
    let secret = job.line().trim_start_matches("[0] ").to_owned();
    assert!(secret.len() == 64 && secret.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let file = job.line().trim_start_matches("[0] ").to_owned();
    job.await_words("ready", 1);
    let of_the_job = |pid: &Pid| file.starts_with(&format!("/proc/{}/fd/", pid.as_raw_nonzero()));
    assert!(job.processes().iter().any(of_the_job), "{file} is not held by a process of the job");
    assert!(job.processes().len() >= 3, "launcher, agent and rank are looked at");
    for pid in all_processes() {
        for kind in ["cmdline", "environ"] {
            let path = format!("/proc/{}/{kind}", pid.as_raw_nonzero());
            let content = fs::read(&path).unwrap_or_default();
            let found = content.windows(64).any(|window| window == secret.as_bytes());
            assert!(!found, "the secret shows in {path}");
        }
    }
}
