//! Flags and files against the variables that come of them.

use clap::{Args, FromArgMatches};

use super::*;

/// The flags of a line.
fn flags(line: &str) -> Tuning {
    let command = Tuning::augment_args(Command::new("run").no_binary_name(true));
    let matches = command.try_get_matches_from(line.split_whitespace()).expect(line);
    Tuning::from_arg_matches(&matches).expect(line)
}

fn refusal(line: &str) -> String {
    let command = Tuning::augment_args(Command::new("run").no_binary_name(true));
    command.try_get_matches_from(line.split_whitespace()).expect_err(line).to_string()
}

/// A file with these keys, one in each line.
fn file(entries: &[(&str, &str)]) -> ConfigFile {
    let entry = |(index, (key, value)): (usize, &(&str, &str))| Entry {
        key: (*key).to_owned(),
        line: index + 1,
        value: Some((*value).to_owned()),
    };
    ConfigFile { path: "c.yaml".into(), entries: entries.iter().enumerate().map(entry).collect() }
}

/// `NAME=VALUE` for every variable, and what is said.
fn outcome(flags: &Tuning, file: Option<&ConfigFile>) -> Result<(Vec<String>, String), String> {
    let mut notes = Notes::default();
    let set = variables(flags, file, &mut notes).map_err(|problem| problem.to_string())?;
    let mut set: Vec<String> = set.iter().map(|(name, value)| format!("{name}={value}")).collect();
    set.sort();
    Ok((set, notes.text(false)))
}

#[test]
fn flags_set_the_variables_that_horovod_set() {
    for (line, variable) in [
        ("--fusion-threshold-mb 32", "HOROVOD_FUSION_THRESHOLD=33554432"),
        ("--fusion-threshold-mb=0", "HOROVOD_FUSION_THRESHOLD=0"),
        ("--cycle-time-ms 3.5", "HOROVOD_CYCLE_TIME=3.5"),
        ("--cache-capacity 512", "HOROVOD_CACHE_CAPACITY=512"),
        ("--hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE=1"),
        ("--no-hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE=0"),
        ("--hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER=1"),
        ("--no-torus-allreduce", "HOROVOD_TORUS_ALLREDUCE=0"),
        ("--no-autotune", "HOROVOD_AUTOTUNE=0"),
        ("--autotune-warmup-samples 3", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES=3"),
        ("--timeline-filename t-{rank}.json", "HOROVOD_TIMELINE=t-{rank}.json"),
        ("--timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES=1"),
        ("--no-timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES=0"),
        ("--no-stall-check", "HOROVOD_STALL_CHECK_DISABLE=1"),
        ("--stall-check", "HOROVOD_STALL_CHECK_DISABLE=0"),
        ("--stall-check-warning-time-seconds 5", "HOROVOD_STALL_CHECK_TIME_SECONDS=5"),
        ("--stall-check-shutdown-time-seconds 9", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=9"),
        ("--no-mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE=0"),
        ("--num-nccl-streams 2", "HOROVOD_NUM_NCCL_STREAMS=2"),
        ("--thread-affinity 0,2", "HOROVOD_THREAD_AFFINITY=0,2"),
        ("--gloo-timeout-seconds 60", "HOROVOD_GLOO_TIMEOUT_SECONDS=60"),
        ("--log-level DEBUG", "HOROVOD_LOG_LEVEL=DEBUG"),
        ("--log-without-timestamp", "HOROVOD_LOG_HIDE_TIME=1"),
        ("--log-with-timestamp", "HOROVOD_LOG_HIDE_TIME=0"),
    ] {
        assert_eq!(outcome(&flags(line), None), Ok((vec![variable.to_owned()], String::new())), "{line}");
    }
}

#[test]
fn values_that_make_no_sense_are_refused_with_what_was_expected() {
    for (line, problem) in [
        ("--fusion-threshold-mb -1", "'-1' for '--fusion-threshold-mb <MB>': it is not a whole number"),
        ("--fusion-threshold-mb 99999999999999999", "larger than any memory"),
        ("--cycle-time-ms -0.5", "it is not a number of at least 0"),
        ("--cache-capacity many", "it is not a whole number"),
        ("--autotune-gaussian-process-noise 1.5", "it is not a number from 0 to 1"),
        ("--stall-check-warning-time-seconds -3", "it is not a number of seconds"),
        ("--num-nccl-streams 0", "it is not a whole number of at least 1"),
        ("--thread-affinity 1-3", "it is not a list of core numbers"),
        ("--log-level LOUD", "it is none of TRACE, DEBUG"),
    ] {
        let error = refusal(line);
        assert!(error.contains(problem), "{line}: {error}");
    }
}

#[test]
fn every_key_of_the_file_is_understood_and_some_say_the_opposite() {
    let keys = [
        ("params.fusion_threshold_mb", "32"),
        ("params.cycle_time_ms", "3.5"),
        ("timeline.mark_cycles", "yes"),
        ("stall_check.enabled", "false"),
        ("logging.with_timestamp", "true"),
        ("logging.level", "info"),
        ("autotune.enabled", "off"),
    ];
    let expected = [
        "HOROVOD_AUTOTUNE=0",
        "HOROVOD_CYCLE_TIME=3.5",
        "HOROVOD_FUSION_THRESHOLD=33554432",
        "HOROVOD_LOG_HIDE_TIME=0",
        "HOROVOD_LOG_LEVEL=info",
        "HOROVOD_STALL_CHECK_DISABLE=1",
        "HOROVOD_TIMELINE_MARK_CYCLES=1",
    ];
    let (set, said) = outcome(&Tuning::default(), Some(&file(&keys))).expect("a good file");
    assert_eq!((set.as_slice(), said.as_str()), (expected.map(str::to_owned).as_slice(), ""));
}

#[test]
fn a_flag_wins_over_the_file() {
    let file = file(&[("params.cycle_time_ms", "5"), ("stall_check.enabled", "true")]);
    let flags = flags("--cycle-time-ms 2 --no-stall-check");
    let expected = ["HOROVOD_CYCLE_TIME=2", "HOROVOD_STALL_CHECK_DISABLE=1"].map(str::to_owned).to_vec();
    assert_eq!(outcome(&flags, Some(&file)), Ok((expected, String::new())));
}

#[test]
fn a_wrong_value_in_the_file_is_shown_with_its_line() {
    let wrong = file(&[("params.cycle_time_ms", "5"), ("params.cache_capacity", "-1")]);
    assert_eq!(
        outcome(&Tuning::default(), Some(&wrong)),
        Err("c.yaml:2: params.cache_capacity: \"-1\" is not a whole number".to_owned())
    );
}

#[test]
fn keys_that_are_not_known_are_warned_about_with_the_nearest() {
    for (key, warning) in [
        ("params.fusion_treshold_mb", "did you mean params.fusion_threshold_mb?"),
        ("fusion_threshold_mb", "did you mean params.fusion_threshold_mb?"),
        ("logging.hide_timestamp", "did you mean logging.with_timestamp?"),
        ("stall-check.enabled", "did you mean stall_check.enabled?"),
        ("controler", "did you mean controller?"),
        ("params.gpus_per_rank", "did you mean gpus_per_rank?"),
    ] {
        let (set, said) = outcome(&Tuning::default(), Some(&file(&[(key, "1")]))).expect("only a warning");
        assert_eq!(set, Vec::<String>::new(), "{key}");
        let expected = format!("warning: c.yaml:1: {key} is not known and is ignored; {warning}\n");
        assert_eq!(said, expected);
    }
    let section = file(&[("stall", ""), ("stall.enabled", "1")]);
    let (_, said) = outcome(&Tuning::default(), Some(&section)).expect("only a warning");
    assert_eq!(said.lines().count(), 1, "{said}");
    let (_, said) = outcome(&Tuning::default(), Some(&file(&[("zzz", "1")]))).expect("only a warning");
    assert_eq!(said, "warning: c.yaml:1: zzz is not known and is ignored\n");
}

#[test]
fn what_is_not_there_is_explained_once_for_each_reason_and_ranks_are_not_told_again() {
    let file = file(&[("autotune.warmup_samples", "9")]);
    let flags = flags("--autotune --autotune-log-file log --mpi-threads-disable --cache-capacity 1");
    let (set, said) = outcome(&flags, Some(&file)).expect("taken");
    assert_eq!(set, ["HOROVOD_CACHE_CAPACITY=1"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    let autotune = "note: autotune.warmup_samples (c.yaml:1), --autotune, --autotune-log-file have no effect: \
                    there is no autotuner";
    assert!(lines[0].starts_with(autotune), "{said}");
    assert!(lines[1].starts_with("note: --mpi-threads-disable has no effect: "), "{said}");
}

#[test]
fn old_names_work_with_a_warning() {
    let (set, said) = outcome(&flags("--log-hide-timestamp"), None).expect("taken");
    assert_eq!(set, ["HOROVOD_LOG_HIDE_TIME=1"]);
    assert_eq!(said, "warning: --log-hide-timestamp is an old name; use --log-without-timestamp\n");
    let (set, said) = outcome(&flags("--no-log-hide-timestamp"), None).expect("taken");
    assert_eq!(set, ["HOROVOD_LOG_HIDE_TIME=0"]);
    assert!(said.contains("use --log-with-timestamp\n"), "{said}");
}
