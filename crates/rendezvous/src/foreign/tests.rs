//! What each launcher's variables are taken for.

use super::*;

/// Describes an environment, on a host called `here` below a launcher of number 77.
fn read(variables: &[(&str, &str)]) -> Result<Description, Error> {
    let var = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    describe(&Surroundings { var: &var, host: "here".to_owned(), setter: &|_| 77 })
}

fn foreign(variables: &[(&str, &str)]) -> Foreign {
    match read(variables) {
        Ok(Description::Foreign(job)) => job,
        other => panic!("{variables:?} gave {other:?}"),
    }
}

fn problem(variables: &[(&str, &str)]) -> String {
    match read(variables) {
        Err(error) => error.to_string(),
        Ok(other) => panic!("{variables:?} gave {other:?}"),
    }
}

/// The variables with these in the place of, or beside, those of the same name.
fn with<'a>(variables: &[(&'a str, &'a str)], others: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let replaced = |name: &str| others.iter().any(|(other, _)| *other == name);
    variables.iter().filter(|(name, _)| !replaced(name)).chain(others).copied().collect()
}

fn place(world: (usize, usize), local: (usize, usize), cross: (usize, usize)) -> Place {
    Place {
        rank: world.0,
        size: world.1,
        local_rank: local.0,
        local_size: local.1,
        cross_rank: cross.0,
        cross_size: cross.1,
    }
}

const TORCHRUN: [(&str, &str); 9] = [
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("GROUP_RANK", "1"),
    ("GROUP_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "gpu1"),
    ("MASTER_PORT", "4000"),
    ("TORCHELASTIC_RUN_ID", "a b/c"),
];

const MPIRUN: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "3"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
    ("PMIX_NAMESPACE", "154992641"),
];

const HYDRA: [(&str, &str); 4] =
    [("PMI_RANK", "2"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "2"), ("MPI_LOCALNRANKS", "4")];

const SRUN: [(&str, &str); 9] = [
    ("SLURM_JOB_ID", "12"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "9"),
    ("SLURM_STEP_NUM_TASKS", "11"),
    ("SLURM_NTASKS", "99"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "4(x2),3"),
    ("SLURM_STEP_NODELIST", "gpu[1-2],login"),
];

#[test]
fn torchrun_says_everything() {
    let job = foreign(&TORCHRUN);
    assert_eq!(job.launcher, Launcher::Torchrun);
    assert_eq!(job.place, place((5, 8), (1, 4), (1, 2)));
    assert_eq!(
        (job.address.host.as_str(), job.address.port),
        ("gpu1", 4001),
        "the port itself is the store's"
    );
    assert!(!job.address.local && !job.address.fixed);
    assert!(job.key.starts_with("torchrun-") && !job.key.contains(['/', ' ']), "{}", job.key);

    let restarted = with(&TORCHRUN, &[("TORCHELASTIC_RESTART_COUNT", "1")]);
    assert_ne!(foreign(&restarted).key, job.key, "every start is a job of its own");
    let neighbour = with(&TORCHRUN, &[("RANK", "4"), ("LOCAL_RANK", "0")]);
    assert_eq!(foreign(&neighbour).key, job.key, "ranks of a job agree");
    let last = with(&TORCHRUN, &[("MASTER_PORT", "65535")]);
    assert_eq!(foreign(&last).address.port, 65534);
}

#[test]
fn a_job_of_one_host_meets_on_loopback_whatever_the_host_is_called() {
    let here =
        [("LOCAL_RANK", "5"), ("LOCAL_WORLD_SIZE", "8"), ("GROUP_RANK", "0"), ("GROUP_WORLD_SIZE", "1")];
    let job = foreign(&with(&TORCHRUN, &here));
    assert_eq!((job.address.host.as_str(), job.address.local), ("127.0.0.1", true));

    let named = foreign(&with(&with(&TORCHRUN, &here), &[("RONDE_RENDEZVOUS", "gpu1:7000")]));
    assert_eq!((named.address.host.as_str(), named.address.port), ("gpu1", 7000), "unless it is named");
    assert!(named.address.fixed && named.address.named && !named.address.local);
}

#[test]
fn a_task_with_pytorchs_names_needs_only_rank_size_and_master() {
    let plain = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "job-master-0")];
    let job = foreign(&plain);
    assert_eq!(job.launcher, Launcher::Tasks);
    assert_eq!(job.place, place((1, 2), (0, 1), (1, 2)));
    assert_eq!((job.address.host.as_str(), job.address.port), ("job-master-0", 29501));
    let fixed = foreign(&with(&plain, &[("RONDE_RENDEZVOUS_PORT", "80")]));
    assert_eq!((fixed.address.port, fixed.address.fixed), (80, true));
    assert!(foreign(&with(&plain, &[("MASTER_ADDR", "::1")])).address.local);

    let ours = [("HOROVOD_RANK", "1"), ("HOROVOD_SIZE", "2"), ("RONDE_RENDEZVOUS", "[fd00::2]:5000")];
    let job = foreign(&ours);
    assert_eq!(job.launcher, Launcher::Hand);
    assert_eq!((job.address.host.as_str(), job.address.port), ("fd00::2", 5000));
}

#[test]
fn mpi_launchers_of_one_host_need_no_address() {
    let job = foreign(&MPIRUN);
    assert_eq!((job.launcher, job.place), (Launcher::OpenMpi, place((1, 3), (1, 3), (0, 1))));
    assert!(job.address.local && DERIVED_PORTS.contains(&job.address.port), "{:?}", job.address);
    assert_ne!(foreign(&with(&MPIRUN, &[("PMIX_NAMESPACE", "154992642")])).key, job.key);

    let job = foreign(&HYDRA);
    assert_eq!((job.launcher, job.place), (Launcher::Hydra, place((2, 4), (2, 4), (0, 1))));
    assert!(job.address.local);
}

#[test]
fn mpi_launchers_of_several_hosts_need_the_one_of_rank_0() {
    let two_hosts = with(&MPIRUN, &[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]);
    let told = problem(&two_hosts);
    assert!(told.starts_with("started by Open MPI's mpirun: "), "{told}");
    assert!(told.contains("-x MASTER_ADDR=HOST") && told.contains("horovodrun -H"), "{told}");

    let second = [("OMPI_COMM_WORLD_RANK", "3"), ("MASTER_ADDR", "a")];
    let job = foreign(&with(&two_hosts, &second));
    assert_eq!(job.place, place((3, 4), (1, 2), (1, 2)));
    assert_eq!((job.address.host.as_str(), job.address.port), ("a", 29501));

    let hydra = [("PMI_SIZE", "8"), ("MASTER_ADDR", "a")];
    assert_eq!(foreign(&with(&HYDRA, &hydra)).place, place((2, 8), (2, 4), (0, 2)));
}

#[test]
fn a_step_of_slurm_has_its_first_host_serve() {
    let job = foreign(&SRUN);
    assert_eq!((job.launcher, job.place), (Launcher::Slurm, place((9, 11), (1, 3), (2, 3))));
    assert_eq!(job.address.host, "gpu1");
    assert!(DERIVED_PORTS.contains(&job.address.port) && !job.address.local);
    assert_ne!(foreign(&with(&SRUN, &[("SLURM_STEP_ID", "1")])).key, job.key);

    let by_blocks: Vec<_> =
        SRUN.into_iter().filter(|(name, _)| !["SLURM_LOCALID", "SLURM_NODEID"].contains(name)).collect();
    assert_eq!(foreign(&by_blocks).place, place((9, 11), (1, 3), (2, 3)));
    let fourth = with(&SRUN, &[("SLURM_PROCID", "7"), ("SLURM_LOCALID", "3"), ("SLURM_NODEID", "1")]);
    assert_eq!(foreign(&fourth).place, place((7, 11), (3, 4), (1, 2)), "the third host has no fourth rank");
}

#[test]
fn whatever_runs_one_process_is_a_job_of_one() {
    let batch: Vec<_> = SRUN.into_iter().filter(|(name, _)| *name != "SLURM_STEP_ID").collect();
    let cases: [Vec<(&str, &str)>; 8] = [
        vec![],
        vec![("RANK", "3")],
        vec![("WORLD_SIZE", "3")],
        vec![("RANK", "0"), ("WORLD_SIZE", "1")],
        vec![("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")],
        vec![("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")],
        with(&SRUN, &[("SLURM_STEP_ID", "4294967291")]),
        batch,
    ];
    for case in cases {
        assert_eq!(read(&case).expect("no error"), Description::Alone, "{case:?}");
    }
}

#[test]
fn the_nearest_launcher_counts() {
    let ours = [
        ("HOROVOD_RANK", "0"),
        ("HOROVOD_SIZE", "2"),
        ("RONDE_RENDEZVOUS", "127.0.0.1:1"),
        ("RONDE_SECRET_FILE", "f"),
    ];
    let everything: Vec<_> = [&SRUN[..], &HYDRA, &MPIRUN, &TORCHRUN].concat();
    assert_eq!(read(&with(&everything, &ours)).expect("no error"), Description::Launched);
    assert_eq!(foreign(&everything).launcher, Launcher::Torchrun);
    assert_eq!(foreign(&[&SRUN[..], &HYDRA, &MPIRUN].concat()).launcher, Launcher::OpenMpi);
    assert_eq!(foreign(&[&SRUN[..], &HYDRA].concat()).launcher, Launcher::Hydra);

    // What scripts for srun set for PyTorch's sake, and leave over from elsewhere, is no launcher.
    let script = with(&SRUN, &[("MASTER_ADDR", "gpu2"), ("MASTER_PORT", "5000"), ("WORLD_SIZE", "11")]);
    let job = foreign(&script);
    assert_eq!((job.launcher, job.address.host.as_str(), job.address.port), (Launcher::Slurm, "gpu2", 5001));
    assert_eq!(foreign(&with(&MPIRUN, &[("RANK", "0"), ("WORLD_SIZE", "1")])).launcher, Launcher::OpenMpi);

    // Copies of its numbers do not hide what it knows about hosts; other numbers are somebody else's.
    let copied = with(&script, &[("RANK", "9"), ("LOCAL_RANK", "1")]);
    assert_eq!((foreign(&copied).launcher, foreign(&copied).place), (Launcher::Slurm, foreign(&SRUN).place));
    let below = with(&script, &[("RANK", "3"), ("WORLD_SIZE", "22")]);
    assert_eq!((foreign(&below).launcher, foreign(&below).place.rank), (Launcher::Tasks, 3));
}

#[test]
fn what_is_missing_or_contradicts_itself_is_said_with_the_launchers_name() {
    for (variables, expected) in [
        (
            vec![("OMPI_COMM_WORLD_RANK", "0")],
            "mpirun: OMPI_COMM_WORLD_RANK is set but OMPI_COMM_WORLD_SIZE is not",
        ),
        (with(&MPIRUN, &[("OMPI_COMM_WORLD_RANK", "3")]), "must be below OMPI_COMM_WORLD_SIZE=3"),
        (with(&MPIRUN, &[("OMPI_COMM_WORLD_SIZE", "many")]), "\"many\" is not a number"),
        (with(&MPIRUN, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")]), "contradict"),
        (with(&MPIRUN, &[("RONDE_RENDEZVOUS_PORT", "0")]), "RONDE_RENDEZVOUS_PORT=\"0\" is no port"),
        (with(&MPIRUN, &[("RONDE_RENDEZVOUS", "nowhere")]), "is not host:port"),
        (vec![("PMI_SIZE", "2")], "mpiexec (PMI): PMI_SIZE is set but PMI_RANK is not"),
        (vec![("RANK", "0"), ("MASTER_ADDR", "a")], "RANK and WORLD_SIZE: RANK is set but WORLD_SIZE is not"),
        (vec![("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR is not set"),
        (vec![("RANK", "0"), ("TORCHELASTIC_RUN_ID", "x")], "torchrun: RANK is set but WORLD_SIZE is not"),
        (with(&TORCHRUN, &[("MASTER_PORT", "x")]), "MASTER_PORT=\"x\" is no port"),
        (
            with(&SRUN, &[("SLURM_STEP_TASKS_PER_NODE", "4(x3)")]),
            "makes 12 tasks, but SLURM_STEP_NUM_TASKS says 11",
        ),
        (with(&SRUN, &[("SLURM_STEP_TASKS_PER_NODE", "x")]), "is no list such as 4(x2),3"),
        (with(&SRUN, &[("SLURM_LOCALID", "3")]), "has no such task"),
        (with(&SRUN, &[("SLURM_STEP_NODELIST", "n[1")]), "is no list such as n[1-3]"),
    ] {
        let told = problem(&variables);
        assert!(told.contains(expected), "{variables:?}: {told}");
    }
}
