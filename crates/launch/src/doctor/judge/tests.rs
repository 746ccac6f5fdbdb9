//! Every kind of trouble, and that healthy hosts have none.

use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::doctor::question::{Container, Gpu, Python};
use crate::doctor::report::{Reach, Trouble};

fn python(version: &str, packages: &[(&str, &str)]) -> Python {
    let packages =
        packages.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect();
    Python { path: "/usr/bin/python3".to_owned(), version: version.to_owned(), packages }
}

fn healthy(name: &str) -> HostReport {
    let gpu = Gpu { name: "NVIDIA H200".to_owned(), driver: "570.86.15".to_owned() };
    let findings = Findings {
        python: Some(python("3.11.4", &[("torch", "2.15.0"), ("ronde", "0.1.0")])),
        gpus: Some(vec![gpu.clone(), gpu]),
        visible_gpus: 2,
        cuda: Some("13.0".to_owned()),
        open_files: 1024,
        folder: Folder::Shared,
        ..Findings::default()
    };
    HostReport {
        name: name.to_owned(),
        slots: 2,
        port: Some(12345),
        clock_ahead: Some(0.002),
        findings: Some(findings),
        ..HostReport::default()
    }
}

/// Two hosts of which the second is changed.
fn two(change: impl FnOnce(&mut HostReport)) -> Report {
    let mut other = healthy("gpu2");
    change(&mut other);
    Report { hosts: vec![healthy("gpu1"), other], ..Report::default() }
}

fn found(host: &mut HostReport) -> &mut Findings {
    host.findings.as_mut().expect("a healthy host")
}

/// Asserts that there is one problem, and what is said about it.
fn assert_one(report: &Report, severity: Severity, check: &str, what: &str, fix: &str) {
    let problems = judge(report);
    let [problem] = problems.as_slice() else { panic!("not one problem: {problems:#?}") };
    assert_eq!((problem.severity, problem.check), (severity, check));
    assert_eq!(problem.what, what);
    assert_eq!(problem.fix.as_deref().unwrap_or_default(), fix);
    assert!(problem.hosts.contains(&"gpu2".to_owned()), "{problem:?}");
}

#[test]
fn healthy_hosts_have_no_problems() {
    assert_eq!(judge(&two(|_| {})), []);
}

#[test]
fn a_host_that_was_not_reached_has_one_problem_and_not_ten() {
    let report = two(|host| {
        host.findings = None;
        host.clock_ahead = None;
        let what = "gpu2 (port 12345) refused the key of user anna".to_owned();
        host.trouble =
            Some(Trouble { check: "login", what, fix: Some("ronde setup-ssh -H gpu2".to_owned()) });
    });
    let what = "gpu2 (port 12345) refused the key of user anna";
    assert_one(&report, Severity::Error, "login", what, "ronde setup-ssh -H gpu2");
}

#[test]
fn python_must_be_there_and_should_be_the_same() {
    assert_one(
        &two(|host| found(host).python = None),
        Severity::Error,
        "python",
        "no Python was found there, neither python nor python3",
        "ssh -t -p 12345 gpu2 'sudo apt-get install -y python3'",
    );
    assert_one(
        &two(|host| found(host).python = Some(python("3.13.1", &[("torch", "2.15.0")]))),
        Severity::Warning,
        "python",
        "Python is 3.11 on gpu1, but 3.13 on gpu2",
        "start the job with the same one everywhere: ronde run … /path/to/python train.py",
    );
    assert_eq!(judge(&two(|host| found(host).python = Some(python("3.11.9", &[("torch", "2.15.0")])))), []);
}

#[test]
fn frameworks_must_be_everywhere_and_should_be_the_same() {
    assert_one(
        &two(|host| found(host).python = Some(python("3.11.4", &[]))),
        Severity::Error,
        "packages",
        "torch is not installed there, though on gpu1",
        "ssh -p 12345 gpu2 '/usr/bin/python3 -m pip install torch==2.15.0'",
    );
    assert_one(
        &two(|host| found(host).python = Some(python("3.11.4", &[("torch", "2.6.0")]))),
        Severity::Warning,
        "packages",
        "torch is 2.15.0 on gpu1, but 2.6.0 on gpu2",
        "ssh -p 12345 gpu2 '/usr/bin/python3 -m pip install torch==2.15.0'",
    );
}

/// Gives a host so many GPUs.
fn with_gpus(host: &mut HostReport, count: usize) {
    let gpu = Gpu { name: "NVIDIA H200".to_owned(), driver: "570.86.15".to_owned() };
    let findings = found(host);
    findings.gpus = Some(vec![gpu; count]);
    findings.visible_gpus = count;
}

#[test]
fn ranks_that_share_a_gpu_are_a_warning() {
    for (gpus, slots, sharing) in [
        (2, 3, "it has 2 GPUs for 3 slots: up to 2 ranks will share a GPU"),
        (2, 4, "it has 2 GPUs for 4 slots: 2 ranks will share each GPU"),
        (1, 4, "it has 1 GPU for 4 slots: 4 ranks will share each GPU"),
    ] {
        let report = two(|host| {
            with_gpus(host, gpus);
            host.slots = slots;
        });
        let what = format!("{sharing}; NCCL does not do that, Ronde's path inside the device does");
        let fix = format!(
            "let scripts choose by local_rank() % number of GPUs, or give it fewer slots: -H …,gpu2:{gpus}"
        );
        assert_one(&report, Severity::Warning, "gpus", &what, &fix);
    }
}

#[test]
fn gpus_are_expected_of_all_hosts_where_any_has_one() {
    let none = |host: &mut HostReport| {
        found(host).gpus = None;
        found(host).visible_gpus = 0;
    };
    assert_one(
        &two(none),
        Severity::Error,
        "gpus",
        "it has no NVIDIA driver and so no GPU that can be used, for 2 slots",
        "leave gpu2 out of -H, or install the NVIDIA driver there",
    );
    assert_one(
        &two(|host| with_gpus(host, 0)),
        Severity::Error,
        "gpus",
        "nvidia-smi shows no GPU, for 2 slots",
        "ssh -p 12345 gpu2 nvidia-smi",
    );
    let mut without = two(none);
    with_gpus(&mut without.hosts[0], 0);
    assert_eq!(judge(&without), []);
}

#[test]
fn gpus_without_the_drivers_library_are_an_error_only_among_hosts_that_have_it() {
    let what = "it has 2 GPUs, but the driver's library, libcuda.so.1, cannot be opened there";
    let without = |host: &mut HostReport| found(host).cuda = None;
    let fix = "install the libraries of the NVIDIA driver 570.86.15 there";
    assert_one(&two(without), Severity::Error, "gpus", what, fix);
    let in_container = two(|host| {
        without(host);
        let kind = "docker".to_owned();
        found(host).container = Some(Container { kind, shared_memory: 8 << 30, own_network: false });
    });
    assert_one(
        &in_container,
        Severity::Error,
        "gpus",
        what,
        "give the container its GPUs: docker run --gpus all …",
    );
    let mut nowhere = two(without);
    without(&mut nowhere.hosts[0]);
    assert_one(&nowhere, Severity::Warning, "gpus", what, fix);
}

#[test]
fn gpus_that_a_host_hides_are_missed() {
    let masked = |mask: &'static str, visible: usize| {
        move |host: &mut HostReport| {
            found(host).visible_devices = Some(mask.to_owned());
            found(host).visible_gpus = visible;
            host.slots = visible.max(1);
        }
    };
    assert_one(
        &two(masked("1", 1)),
        Severity::Warning,
        "gpus",
        "CUDA_VISIBLE_DEVICES=1 is set there, which shows only 1 of its 2 GPUs",
        "unset CUDA_VISIBLE_DEVICES there, if the job should use all",
    );
    assert_one(
        &two(masked("", 0)),
        Severity::Error,
        "gpus",
        "CUDA_VISIBLE_DEVICES=\"\" is set there, which hides all of its GPUs (2 GPUs)",
        "unset CUDA_VISIBLE_DEVICES there, if the job should use them",
    );
    assert_eq!(judge(&two(masked("1,0", 2))), []);
}

#[test]
fn slots_should_follow_where_hosts_have_different_numbers_of_gpus() {
    assert_one(
        &two(|host| with_gpus(host, 4)),
        Severity::Warning,
        "gpus",
        "hosts have different numbers of GPUs, and some stay unused: gpu1 2 GPUs for 2 slots, gpu2 4 GPUs for 2 slots",
        "give every GPU a slot: -H gpu1:2,gpu2:4",
    );
    let followed = two(|host| {
        with_gpus(host, 5);
        host.slots = 5;
    });
    assert_eq!(judge(&followed), []);
    let mut equal = two(|host| with_gpus(host, 4));
    with_gpus(&mut equal.hosts[0], 4);
    assert_eq!(judge(&equal), [], "whoever leaves the same number free everywhere means it");
}

#[test]
fn drivers_should_be_the_same() {
    assert_one(
        &two(|host| found(host).gpus.as_mut().expect("some")[0].driver = "550.1".to_owned()),
        Severity::Warning,
        "gpus",
        "the NVIDIA driver is 570.86.15 on gpu1, but 550.1 on gpu2",
        "",
    );
}

#[test]
fn clocks_may_differ_a_little() {
    assert_one(
        &two(|host| host.clock_ahead = Some(-61.23)),
        Severity::Warning,
        "clock",
        "its clock is 61.2 s behind this machine's",
        "ssh -t -p 12345 gpu2 'sudo timedatectl set-ntp true'",
    );
    assert_eq!(judge(&two(|host| host.clock_ahead = Some(0.9))), []);
}

#[test]
fn two_hosts_need_one_direction() {
    let failed = |failure: &str| Reach { failure: Some(failure.to_owned()), ..Reach::default() };
    let mut report = two(|_| {});
    report.pairs = vec![Pair {
        from: "gpu1".to_owned(),
        to: "gpu2".to_owned(),
        forward: failed("10.0.0.2: timed out"),
        backward: failed("10.0.0.1: timed out"),
        ..Pair::default()
    }];
    assert_one(
        &report,
        Severity::Error,
        "reach",
        "neither reaches the other: 10.0.0.2: timed out",
        "open some ports in the firewalls, and name them: ronde run --port-range 30000-30999 …",
    );
    let address = Some(IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)));
    report.pairs[0].backward = Reach { address, round_trip: Some(0.0001), failure: None };
    assert_eq!(judge(&report), []);
}

#[test]
fn containers_that_do_not_reach_each_other_should_use_their_machines_network() {
    let container = Container { kind: "docker".to_owned(), shared_memory: 8 << 30, own_network: true };
    let mut report = two(|host| found(host).container = Some(container));
    report.pairs = vec![Pair { from: "gpu1".to_owned(), to: "gpu2".to_owned(), ..Pair::default() }];
    assert_one(
        &report,
        Severity::Error,
        "reach",
        "neither reaches the other: no answer",
        "give the containers the network of their machines: docker run --network host …",
    );
}

#[test]
fn what_is_wrong_with_several_hosts_is_said_once() {
    let mut report = two(|host| found(host).folder = Folder::Missing);
    report.hosts.push(HostReport { name: "gpu3".to_owned(), ..report.hosts[1].clone() });
    let problems = judge(&report);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].hosts, ["gpu2", "gpu3"]);
}

#[test]
fn the_current_folder_should_be_everywhere() {
    let missing = judge(&two(|host| found(host).folder = Folder::Missing));
    assert!(missing[0].what.contains("does not have the current folder"), "{missing:?}");
    let own = judge(&two(|host| found(host).folder = Folder::Own));
    assert!(own[0].what.contains("not the same one"), "{own:?}");
    assert!(missing.iter().chain(&own).all(|problem| problem.severity == Severity::Warning));
    assert_eq!(judge(&two(|host| found(host).folder = Folder::Unclear)), []);
}

#[test]
fn limits_are_held_against_what_the_job_needs() {
    let mut small = two(|host| found(host).open_files = 100);
    assert_one(
        &small,
        Severity::Error,
        "limits",
        "a process may open 100 files there, and 4 ranks may need 144",
        r"ssh -t -p 12345 gpu2 'echo '\''* - nofile 65536'\'' | sudo tee -a /etc/security/limits.conf'",
    );
    found(&mut small.hosts[1]).open_files = 200;
    assert_eq!(judge(&small), []);
    let locked = two(|host| {
        found(host).infiniband = true;
        found(host).locked_memory = Some(8 << 20);
    });
    let problems = judge(&locked);
    assert_eq!(
        problems[0].what,
        "a process may lock only 8 MiB of memory there, which InfiniBand needs more of"
    );
}

#[test]
fn a_container_needs_shared_memory() {
    let container =
        |kind: &str| Container { kind: kind.to_owned(), shared_memory: 64 << 20, own_network: true };
    assert_one(
        &two(|host| found(host).container = Some(container("docker"))),
        Severity::Warning,
        "container",
        "its container has only 64 MiB in /dev/shm, too little for workers that load data",
        "docker run --shm-size=8g …  (or --ipc=host)",
    );
    let large = Container { shared_memory: 8 << 30, ..container("docker") };
    assert_eq!(judge(&two(|host| found(host).container = Some(large))), []);
}

#[test]
fn errors_come_before_warnings() {
    let report = two(|host| {
        host.clock_ahead = Some(100.0);
        with_gpus(host, 0);
        found(host).folder = Folder::Missing;
    });
    let severities: Vec<Severity> = judge(&report).iter().map(|problem| problem.severity).collect();
    assert_eq!(severities, [Severity::Error, Severity::Warning, Severity::Warning]);
}
