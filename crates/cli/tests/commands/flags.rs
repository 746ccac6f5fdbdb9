//! Flags, hostfiles and configuration files, by what the ranks of a real job find.

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::job::{Folder, Outcome, outcome, ronde};

/// The words of a line, run as `ronde run -q --no-prefix …`, without variables that would disturb.
fn run(line: &str, folder: &Folder) -> Outcome {
    let mut command = ronde(&["run", "--no-prefix"]);
    outcome(in_peace(&mut command).args(line.split_whitespace()).current_dir(&folder.0))
}

/// Without the batch system that the tests themselves may run under.
fn in_peace(command: &mut Command) -> &mut Command {
    for name in ["LSB_JOBID", "SLURM_JOB_NODELIST", "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY"] {
        command.env_remove(name);
    }
    command
}

fn script(folder: &Folder, text: &str) -> String {
    format!("sh {}", folder.file("script.sh", text).display())
}

#[test]
fn flags_win_over_the_file_and_the_file_over_the_environment() {
    let folder = Folder::new("config");
    folder.file("c.yaml", "params:\n  cycle_time_ms: 5\n  cache_capacity: 64\n  cache_capcity: 3\n");
    let script =
        script(&folder, "echo $HOROVOD_CYCLE_TIME $HOROVOD_CACHE_CAPACITY $HOROVOD_FUSION_THRESHOLD");
    let mut command = ronde(&["run", "-q", "--no-prefix"]);
    let line = format!("-np 1 --cycle-time-ms 2 --config-file c.yaml {script}");
    let outcome = outcome(
        in_peace(&mut command)
            .args(line.split_whitespace())
            .current_dir(&folder.0)
            .env("HOROVOD_CYCLE_TIME", "9")
            .env("HOROVOD_CACHE_CAPACITY", "9")
            .env("HOROVOD_FUSION_THRESHOLD", "9"),
    );
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), "2 64 9\n"), "{outcome:?}");
    let expected = "warning: c.yaml:4: params.cache_capcity is not known and is ignored; \
                    did you mean params.cache_capacity?\n";
    assert_eq!(outcome.stderr, expected, "a warning is shown even with -q");
}

#[test]
fn a_configuration_file_that_cannot_be_used_stops_the_job_with_file_and_line() {
    let folder = Folder::new("bad-config");
    folder.file("value.yaml", "params:\n  cycle_time_ms: soon\n");
    folder.file("words.yaml", "params: [\n");
    for (file, expected) in [
        ("value.yaml", "error: value.yaml:2: params.cycle_time_ms: \"soon\" is not a number of at least 0\n"),
        ("words.yaml", "error: words.yaml:2: this is not YAML: "),
        ("none.yaml", "error: cannot read none.yaml: No such file or directory"),
    ] {
        let outcome = run(&format!("-np 1 --config-file {file} echo ran"), &folder);
        assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(1), ""), "{file}");
        assert!(outcome.stderr.starts_with(expected), "{}", outcome.stderr);
    }
}

#[test]
fn a_hostfile_gives_hosts_and_slots() {
    let folder = Folder::new("hostfile");
    folder.file("hosts", "# the lab\n\nlocalhost slots=2   # here\n127.0.0.1\n");
    let script = script(&folder, "echo $HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_HOSTNAME");
    for flag in ["--hostfile", "-hostfile"] {
        let outcome = run(&format!("-q {flag} hosts {script}"), &folder);
        let mut lines: Vec<&str> = outcome.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["0/3 localhost", "1/3 localhost", "2/3 127.0.0.1"], "{outcome:?}");
    }
}

#[test]
fn a_hostfile_that_cannot_be_used_is_an_error_with_file_and_line() {
    let folder = Folder::new("bad-hostfile");
    folder.file("hosts", "localhost slots=2\ngpu7 slots=some\n");
    folder.file("nobody", "# nobody\n");
    for (file, expected) in [
        (
            "hosts",
            "error: hosts:2: cannot read \"gpu7 slots=some\": \"some\" is not a number of slots\n\
             hint: write one host a line, for example: gpu1 slots=4\n",
        ),
        ("nobody", "error: nobody names no host\nhint: write one host a line, for example: gpu1 slots=4\n"),
        ("none", "error: cannot read none: No such file or directory (os error 2)\n"),
    ] {
        let outcome = run(&format!("-np 1 --hostfile {file} echo ran"), &folder);
        assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(1), ""), "{file}");
        assert_eq!(outcome.stderr, expected);
    }
    let both = run("-np 1 -H localhost --hostfile hosts echo ran", &folder);
    assert_eq!(both.code(), Some(2));
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
}

#[test]
fn variables_are_set_or_passed_on_for_every_rank() {
    let folder = Folder::new("variables");
    let script = script(&folder, "echo $WORDS $HOROVOD_CYCLE_TIME");
    let line = format!("-q -np 2 --cycle-time-ms 2 --env WORDS=a=b -x HOROVOD_CYCLE_TIME=7 {script}");
    assert_eq!(run(&line, &folder).stdout, "a=b 7\na=b 7\n");
    let missing = run("-np 1 -x RONDE_TEST_NOBODY_SETS_THIS echo ran", &folder);
    assert_eq!((missing.code(), missing.stdout.as_str()), (Some(1), ""));
    assert!(missing.stderr.contains("RONDE_TEST_NOBODY_SETS_THIS: it is not set here"), "{}", missing.stderr);
}

#[test]
fn an_old_command_line_runs_and_says_what_is_done_instead() {
    let folder = Folder::new("old-line");
    let link = folder.0.join("horovodrun");
    symlink(env!("CARGO_BIN_EXE_ronde"), &link).expect("link");
    let line = "-np 1 --gloo --autotune --disable-cache --tcp --hierarchical-allreduce --min-np 1 echo ran";
    let mut command = Command::new(&link);
    let spoken = outcome(in_peace(&mut command).args(line.split_whitespace()));
    assert_eq!((spoken.code(), spoken.stdout.as_str()), (Some(0), "[0]<stdout>:ran\n"), "{spoken:?}");
    let starts: Vec<&str> =
        spoken.stderr.lines().map(|line| line.split_once(": ").unwrap_or((line, "")).1).collect();
    let expected =
        ["--min-np has no effect", "--autotune has no effect", "--gloo: Ronde's own", "--tcp: tensors go"];
    assert_eq!(starts.len(), expected.len(), "{}", spoken.stderr);
    for (line, start) in starts.iter().zip(expected) {
        assert!(line.starts_with(start), "{start}: {}", spoken.stderr);
    }
    let mut command = Command::new(&link);
    let silent = outcome(in_peace(&mut command).arg("-q").args(line.split_whitespace()));
    assert_eq!(silent.stderr, "", "notes are left out with -q");
}

#[test]
fn an_elastic_job_is_refused_before_anything_starts() {
    let folder = Folder::new("elastic");
    let outcome = run("-np 2 --min-np 1 --host-discovery-script ./hosts.sh echo ran", &folder);
    let expected = "error: --host-discovery-script, --min-np: elastic jobs are not in this version, which starts jobs \
                    of a fixed size\nhint: name the hosts with -H or --hostfile, and leave these flags out\n";
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(1), ""));
    assert_eq!(outcome.stderr, expected);
}

#[test]
fn numbers_below_0_are_refused_with_the_flag_and_what_it_takes() {
    let folder = Folder::new("negative");
    for (line, words) in [
        ("--fusion-threshold-mb -1", "'-1' for '--fusion-threshold-mb <MB>': it is not a whole number"),
        (
            "--start-timeout -1",
            "'-1' for '--start-timeout <SECONDS>': it is not a positive number of seconds",
        ),
        ("--port-range 9-1", "'9-1' for '--port-range <LOW-HIGH>': 9 is larger than 1"),
        ("-p 0", "it is not a port"),
        ("-np -1", "'-1' for '--num-proc <N>': it is not a whole number"),
    ] {
        let outcome = run(&format!("-np 1 {line} echo ran"), &folder);
        assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(2), ""), "{line}");
        assert!(outcome.stderr.contains(words), "{line}: {}", outcome.stderr);
    }
}

#[test]
fn the_slots_of_an_allocation_are_used_and_said() {
    let folder = Folder::new("allocation");
    let script = script(&folder, "echo $HOROVOD_RANK/$HOROVOD_SIZE");
    let hosts = folder.file("lsf-hosts", "localhost\nlocalhost\n");
    let mut command = ronde(&["run", "--no-prefix"]);
    let lsf = outcome(
        in_peace(&mut command)
            .args(script.split_whitespace())
            .env("LSB_JOBID", "7")
            .env("LSB_DJOB_HOSTFILE", &hosts)
            .env_remove("LSB_MCPU_HOSTS")
            .env_remove("LSB_HOSTS"),
    );
    let mut lines: Vec<&str> = lsf.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0/2", "1/2"], "{lsf:?}");
    assert!(
        lsf.stderr.starts_with("note: hosts and slots are those of LSF job 7: localhost:2\n"),
        "{}",
        lsf.stderr
    );
}
