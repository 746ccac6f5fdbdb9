//! Command lines against the requests that come of them.

use std::ffi::OsString;

use super::*;
use crate::args::Verb;
use crate::invocation::{self, Invocation};

/// The request of a command line in an environment, and what is said, or the problem.
fn asked(line: &str, environment: &[(&str, &str)]) -> Result<(Request, String), String> {
    let words = line.split_whitespace().map(OsString::from);
    let Ok(Invocation { name, verb: Verb::Run(args) }) = invocation::read(words) else {
        panic!("not a run: {line}");
    };
    let var = |name: &str| {
        environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let mut notes = Notes::default();
    let request = request(*args, name, &mut notes, var).map_err(|problem| problem.render())?;
    Ok((request, notes.text(false)))
}

fn hosts(request: &Request) -> Option<String> {
    let write = |host: &Host| format!("{}:{}", host.name, host.slots);
    request.hosts.as_ref().map(|hosts| hosts.iter().map(write).collect::<Vec<_>>().join(","))
}

#[test]
fn ranks_and_hosts_come_from_what_is_given() {
    for (line, np, expected) in [
        ("ronde run -np 3 a", 3, None),
        ("ronde run -H gpu1:4,gpu2 a", 5, Some("gpu1:4,gpu2:1")),
        ("horovodrun -np 2 -H gpu1:4,gpu2 a", 2, Some("gpu1:4,gpu2:1")),
    ] {
        let (request, said) = asked(line, &[]).expect(line);
        assert_eq!((request.np, hosts(&request).as_deref()), (np, expected), "{line}");
        assert_eq!(said, "", "{line}");
    }
    let error = asked("ronde run a", &[]).expect_err("no count");
    assert!(error.starts_with("error: it is not said how many ranks") && error.contains("-np 2"), "{error}");
}

#[test]
fn a_batch_systems_hosts_count_where_none_are_named_and_are_said() {
    let lsf = [("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "gpu1 4 gpu2 4")];
    for (line, np) in [("horovodrun a", 8), ("horovodrun -np 6 a", 6), ("ronde run a", 8)] {
        let (request, said) = asked(line, &lsf).expect(line);
        assert_eq!((request.np, hosts(&request).as_deref()), (np, Some("gpu1:4,gpu2:4")), "{line}");
        assert_eq!(said, "note: hosts and slots are those of LSF job 7: gpu1:4,gpu2:4\n");
    }
    let (request, said) = asked("horovodrun -np 2 -H b:2 a", &lsf).expect("named");
    assert_eq!((hosts(&request).as_deref(), said.as_str()), (Some("b:2"), ""));

    let slurm = [("SLURM_JOB_ID", "9"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", "2(x2)")];
    let (request, said) = asked("ronde run a", &slurm).expect("an allocation");
    assert_eq!((request.np, hosts(&request).as_deref()), (4, Some("n1:2,n2:2")));
    assert!(said.starts_with("note: hosts and slots are those of Slurm job 9"), "{said}");
    let (request, said) = asked("ronde run -np 2 a", &slurm).expect("this machine");
    assert_eq!((hosts(&request), said.as_str()), (None, ""));
    assert!(asked("horovodrun a", &slurm).is_err(), "horovodrun asks for -np");
}

#[test]
fn variables_come_from_flags_and_the_last_word_is_that_of_env() {
    let line = "horovodrun -np 2 --cycle-time-ms 2 --cache-capacity 7 --network-interfaces eth0,eth1 \
                --env HOROVOD_CYCLE_TIME=9 -x TOKEN a";
    let (request, _) = asked(line, &[("TOKEN", "t")]).expect(line);
    let expected = [
        ("HOROVOD_CACHE_CAPACITY", "7"),
        ("NCCL_SOCKET_IFNAME", "eth0,eth1"),
        ("HOROVOD_CYCLE_TIME", "9"),
        ("TOKEN", "t"),
    ];
    assert_eq!(request.variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(request.interfaces, ["eth0", "eth1"]);
    let error = asked(line, &[]).expect_err("not set");
    assert_eq!(
        error,
        "error: cannot pass on TOKEN: it is not set here\nhint: give it a value: --env TOKEN=VALUE\n"
    );
}

#[test]
fn what_is_about_other_hosts_reaches_the_launcher() {
    let line = "ronde run -np 2 -p 12345 -i key --ssh-args=-C --accept-new-host-keys --port-range 4000-4009 \
                --heartbeat-timeout 10 --grace 0 --ship data --task-payload call --task-results out a";
    let (request, _) = asked(line, &[]).expect(line);
    assert_eq!((request.ssh.port, request.ssh.accept_new_keys), (Some(12345), true));
    assert_eq!((request.ssh.arguments, request.ssh.identity), (vec!["-C".to_owned()], Some("key".into())));
    assert_eq!(request.ports, Some(4000..=4009));
    assert_eq!((request.lost_after, request.grace), (Duration::from_secs(10), Duration::ZERO));
    assert_eq!(request.ship, [std::path::PathBuf::from("data")]);
    let task = request.task.expect("a task");
    assert_eq!((task.payload, task.results), ("call".into(), "out".into()));
    let (request, _) = asked("ronde run -np 2 a", &[]).expect("plain");
    assert_eq!((request.lost_after, request.grace), (Duration::from_secs(30), Duration::from_secs(4)));
    assert!(request.ports.is_none() && request.waiting.is_none() && request.task.is_none());
}

#[test]
fn agents_that_dial_in_take_the_place_of_hosts() {
    let flags = "--agents 2 --listen 127.0.0.1:4000 --secret-file s";
    let (request, _) =
        asked(&format!("ronde run -np 4 {flags} a"), &[("LSB_JOBID", "7"), ("LSB_HOSTS", "b")])
            .expect("agents");
    let waiting = request.waiting.expect("agents");
    assert_eq!((request.np, request.hosts, waiting.agents), (4, None, 2));
    assert_eq!((waiting.listen.port(), waiting.secret_file), (4000, "s".into()));
    let error = asked(&format!("ronde run {flags} a"), &[]).expect_err("no count");
    assert!(error.contains("the 2 agents") && error.contains("-np 2"), "{error}");
}

#[test]
fn the_start_may_take_as_long_as_the_flag_or_the_variable_says() {
    let timeout = |line: &str, value| {
        let (request, said) = asked(line, &[("HOROVOD_START_TIMEOUT", value)]).expect(line);
        (request.start_timeout.map(|time| time.as_secs()), said)
    };
    assert_eq!(timeout("ronde run -np 1 a", "45"), (Some(45), String::new()));
    assert_eq!(timeout("ronde run -np 1 --start-timeout 7 a", "45"), (Some(7), String::new()));
    let (time, said) = timeout("ronde run -np 1 a", "soon");
    assert_eq!(time, Some(600));
    assert!(said.starts_with("warning: HOROVOD_START_TIMEOUT=soon"), "{said}");
}

#[test]
fn a_list_in_the_flag_for_one_interface_is_taken_with_a_warning() {
    let (request, said) = asked("horovodrun -np 1 --network-interface eth0,eth1 a", &[]).expect("taken");
    assert_eq!(request.interfaces, ["eth0", "eth1"]);
    assert!(said.starts_with("warning: --network-interface takes one name"), "{said}");
}

#[test]
fn gpus_of_ones_own_come_from_the_flag_or_else_from_the_file() {
    let file = |text: Option<&str>| {
        let entry = Entry { key: GPUS_PER_RANK.to_owned(), line: 3, value: text.map(str::to_owned) };
        ConfigFile { path: "c.yaml".into(), entries: vec![entry] }
    };
    let (request, said) = asked("horovodrun -np 2 --gpus-per-rank 2 a", &[]).expect("taken");
    assert_eq!((request.gpus_per_rank, said.as_str()), (Some(2), ""));
    assert_eq!(asked("ronde run -np 2 a", &[]).expect("plain").0.gpus_per_rank, None);
    for (flag, text, expected) in [
        (None, Some("4"), Some(4)),
        (Some(1), Some("4"), Some(1)),
        (Some(1), None, Some(1)),
        (None, None, None),
    ] {
        assert_eq!(gpus_per_rank(flag, Some(&file(text))).expect("taken"), expected, "{flag:?} {text:?}");
    }
    let error = gpus_per_rank(None, Some(&file(Some("half")))).expect_err("no number");
    assert_eq!(error.to_string(), "c.yaml:3: gpus_per_rank: \"half\" is not a whole number of at least 1");
}

#[test]
fn mps_is_asked_for_by_the_flag_else_by_the_file_else_by_the_environment() {
    let on = [("RONDE_MPS", "1")];
    for (line, environment, expected) in [
        ("ronde run -np 2 a", &[][..], false),
        ("ronde run -np 2 --mps a", &[], true),
        ("horovodrun -np 2 --mps a", &[], true),
        ("horovodrun -np 2 a", &on, true),
        ("ronde run -np 2 a", &[("RONDE_MPS", "0")], false),
    ] {
        let (request, said) = asked(line, environment).expect(line);
        assert_eq!((request.mps, said.as_str()), (expected, ""), "{line} {environment:?}");
    }
    let file = |text: &str| {
        let entry = Entry { key: MPS.to_owned(), line: 2, value: Some(text.to_owned()) };
        ConfigFile { path: "c.yaml".into(), entries: vec![entry] }
    };
    let asked_for = |flag, text, value: Option<&str>| {
        mps(flag, Some(&file(text)), &mut Notes::default(), |_| value.map(str::to_owned))
    };
    assert!(asked_for(false, "true", None).expect("a switch"));
    assert!(!asked_for(false, "false", Some("1")).expect("a switch"), "the file wins over the environment");
    assert!(asked_for(true, "false", None).expect("a switch"), "the flag wins over the file");
    let error = asked_for(false, "perhaps", None).expect_err("no switch").to_string();
    assert!(error.starts_with("c.yaml:2: mps: \"perhaps\" "), "{error}");
    let (request, said) = asked("ronde run -np 2 a", &[("RONDE_MPS", "perhaps")]).expect("taken");
    assert!(!request.mps && said.contains("RONDE_MPS"), "{said}");
}
