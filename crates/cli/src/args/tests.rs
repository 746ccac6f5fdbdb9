//! That every option of Horovod's launcher is taken, in every spelling, and that the page about them
//! is complete and right.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::*;
use crate::invocation::{self, Invocation, LONG_SHORTS};
use crate::tuning::table::{Form, TUNABLES};

/// The 61 options of Horovod 0.28.1 and the values given here, every spelling of one in a row.
const HOROVODS: [(&str, &str); 61] = [
    ("-v --version", ""),
    ("-np --num-proc", "2"),
    ("-cb --check-build", ""),
    ("--disable-cache", ""),
    ("--start-timeout", "30"),
    ("--network-interfaces", "eth0,eth1"),
    ("--network-interface", "eth0"),
    ("--output-filename", "logs"),
    ("--verbose", ""),
    ("--config-file", "config.yaml"),
    ("-p --ssh-port", "12345"),
    ("-i --ssh-identity-file", "key"),
    ("--fusion-threshold-mb", "32"),
    ("--cycle-time-ms", "3.5"),
    ("--cache-capacity", "512"),
    ("--hierarchical-allreduce", ""),
    ("--no-hierarchical-allreduce", ""),
    ("--hierarchical-allgather", ""),
    ("--no-hierarchical-allgather", ""),
    ("--torus-allreduce", ""),
    ("--no-torus-allreduce", ""),
    ("--autotune", ""),
    ("--no-autotune", ""),
    ("--autotune-log-file", "log"),
    ("--autotune-warmup-samples", "1"),
    ("--autotune-steps-per-sample", "5"),
    ("--autotune-bayes-opt-max-samples", "10"),
    ("--autotune-gaussian-process-noise", "0.2"),
    ("--min-np --min-num-proc", "2"),
    ("--max-np --max-num-proc", "4"),
    ("--slots-per-host", "4"),
    ("--elastic-timeout", "60"),
    ("--reset-limit", "3"),
    ("--blacklist-cooldown-range", "10 20"),
    ("--timeline-filename", "trace.json"),
    ("--timeline-mark-cycles", ""),
    ("--no-timeline-mark-cycles", ""),
    ("--no-stall-check", ""),
    ("--stall-check", ""),
    ("--stall-check-warning-time-seconds", "5"),
    ("--stall-check-shutdown-time-seconds", "10"),
    ("--mpi-threads-disable", ""),
    ("--no-mpi-threads-disable", ""),
    ("--mpi-args", "--map-by=slot"),
    ("--tcp", ""),
    ("--binding-args", "--bind-to=socket"),
    ("--num-nccl-streams", "2"),
    ("--thread-affinity", "1"),
    ("--gloo-timeout-seconds", "60"),
    ("--log-level", "INFO"),
    ("--log-without-timestamp", ""),
    ("--log-with-timestamp", ""),
    ("--log-hide-timestamp", ""),
    ("--no-log-hide-timestamp", ""),
    ("-prefix-timestamp --prefix-output-with-timestamp", ""),
    ("-H --hosts", "a:1,b:1"),
    ("-hostfile --hostfile", "hosts"),
    ("--host-discovery-script", "./discover.sh"),
    ("--gloo", ""),
    ("--mpi", ""),
    ("--jsrun", ""),
];

/// What only other programs of ours type.
const INTERNAL: [&str; 4] = ["--led", "--task-payload", "--task-results", "--task-output"];

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

#[test]
fn every_option_of_horovods_launcher_is_taken_in_every_spelling() {
    let spellings: usize = HOROVODS.iter().map(|(names, _)| names.split(' ').count()).sum();
    assert_eq!(spellings, 71);
    for (names, value) in HOROVODS {
        for name in names.split(' ') {
            let line = format!("horovodrun {name} {value} python -np 7");
            match invocation::read(words(&line)) {
                Ok(Invocation { verb: Verb::Run(args), .. }) => {
                    assert_eq!(args.command, ["python", "-np", "7"], "{line}");
                }
                Err(error) => {
                    assert_eq!((error.kind(), names), (ErrorKind::DisplayVersion, HOROVODS[0].0), "{error}");
                }
                other => panic!("{line}: {other:?}"),
            }
        }
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    for line in [
        "horovodrun -np 2 --gloo --mpi a",
        "horovodrun -np 2 --jsrun --mpi a",
        "horovodrun -np 2 --autotune --no-autotune a",
        "horovodrun -np 2 --log-with-timestamp --log-hide-timestamp a",
        "horovodrun -np 2 -H a --hostfile b c",
        "ronde run -np 2 --agents 2 --listen 0.0.0.0:4000 --secret-file s -H a c",
        "ronde run -np 2 --verbose --quiet a",
    ] {
        let error = invocation::read(words(line)).expect_err(line);
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{line}");
    }
}

#[test]
fn the_last_of_several_values_counts_and_lists_grow() {
    let line = "horovodrun -np 2 -np 3 -x A=1 -x B --ssh-args '-4' --ssh-args=-C --ship a --ship b \
                --network-interface eth0 --network-interfaces eth1,eth0 c";
    let Ok(Invocation { verb: Verb::Run(args), .. }) = invocation::read(words(line)) else {
        panic!("{line}");
    };
    assert_eq!(args.num_proc, Some(3));
    assert_eq!(args.env.len(), 2);
    assert_eq!(args.network.ship.len(), 2);
    assert_eq!(args.network.interfaces(), ["eth1", "eth0"]);
    assert_eq!(args.ssh.into_ssh().arguments, ["-4", "-C"]);
}

/// The flags of the run verb, in every spelling, hidden ones included.
fn spellings() -> BTreeSet<String> {
    let command = Horovodrun::command();
    let mut all = BTreeSet::from(["-v".to_owned(), "--version".to_owned()]);
    for arg in command.get_arguments() {
        all.extend(arg.get_short().map(|letter| format!("-{letter}")));
        let longs = arg.get_long_and_visible_aliases().unwrap_or_default();
        all.extend(longs.iter().map(|name| format!("--{name}")));
    }
    all.extend(LONG_SHORTS.iter().map(|(short, _)| (*short).to_owned()));
    all.retain(|name| !INTERNAL.contains(&name.as_str()));
    all
}

/// The rows of the page's tables: the spellings in the first column, and the whole row.
fn rows(page: &str) -> Vec<(Vec<String>, &str)> {
    let flag = |piece: &str| piece.split([' ', '=']).next().unwrap_or_default().to_owned();
    page.lines()
        .filter(|line| line.starts_with("| `-"))
        .map(|line| {
            let first = line.split(" | ").next().unwrap_or_default();
            (first.split('`').skip(1).step_by(2).map(flag).collect(), line)
        })
        .collect()
}

#[test]
fn the_page_has_every_flag_and_no_other() {
    let page = include_str!("../../../../docs/horovodrun.md");
    let rows = rows(page);
    let mut written = BTreeSet::new();
    for name in rows.iter().flat_map(|(names, _)| names) {
        assert!(written.insert(name.clone()), "{name} stands twice");
    }
    assert_eq!(written, spellings(), "docs/horovodrun.md");
    for tunable in TUNABLES {
        let flag = match tunable.form {
            Form::Value { flag, .. } => flag,
            Form::Switch { flags, .. } => flags[0].flag,
        };
        let flag = format!("--{flag}");
        let row = rows.iter().find(|(names, _)| names.contains(&flag)).map(|(_, row)| *row).expect("a row");
        for cell in [tunable.variable.name, tunable.key] {
            assert!(row.contains(&format!("`{cell}`")), "{cell} is not in: {row}");
        }
    }
}
