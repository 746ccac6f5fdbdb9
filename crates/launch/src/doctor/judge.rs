//! From findings to problems: what is wrong, how much it matters, and the line that fixes it.
//!
//! Pure. What differs between hosts without harm, such as their memory, is not a problem.

mod gpus;

use std::collections::{BTreeMap, BTreeSet};

use super::question::{Findings, Folder};
use super::report::{HostReport, Pair, Problem, Report, Severity};
use crate::ssh::quoted;

/// Clocks that differ by more than this many seconds make logs and files hard to understand.
const CLOCK_TOLERANCE: f64 = 1.0;
/// Containers get this much shared memory by default, which loaders of data exhaust.
const SMALL_SHARED_MEMORY: u64 = 64 << 20;
/// How many files a process needs open besides its connections.
const OTHER_FILES: u64 = 128;

/// All problems, errors first, each kind in the order of the hosts.
pub(super) fn judge(report: &Report) -> Vec<Problem> {
    let mut problems = Vec::new();
    for host in &report.hosts {
        problems.extend(unreached(host));
    }
    let examined: Vec<(&HostReport, &Findings)> =
        report.hosts.iter().filter_map(|host| Some((host, host.findings.as_ref()?))).collect();
    problems.extend(pythons(&examined));
    problems.extend(packages(&examined));
    problems.extend(gpus::gpus(&examined));
    problems.extend(report.hosts.iter().filter_map(clock));
    problems.extend(report.pairs.iter().filter_map(|pair| separated(pair, &examined)));
    problems.extend(examined.iter().filter_map(|(host, found)| folder(host, found)));
    let ranks = report.hosts.iter().map(|host| host.slots as u64).sum();
    problems.extend(examined.iter().flat_map(|(host, found)| limits(host, found, ranks)));
    problems.extend(examined.iter().flat_map(|(host, found)| container(host, found)));
    problems.sort_by_key(|problem| problem.severity);
    together(problems)
}

/// What is the same on several hosts is said once.
fn together(problems: Vec<Problem>) -> Vec<Problem> {
    let mut joined: Vec<Problem> = Vec::new();
    for problem in problems {
        let said = |known: &&mut Problem| {
            (known.severity, known.check, &known.what, &known.fix)
                == (problem.severity, problem.check, &problem.what, &problem.fix)
        };
        // Two hosts that do not reach each other are not two others that do not.
        match joined.iter_mut().find(said).filter(|known| known.check != "reach") {
            Some(known) => known.hosts.extend(problem.hosts),
            None => joined.push(problem),
        }
    }
    joined
}

fn error(check: &'static str, hosts: &[&HostReport], what: String, fix: Option<String>) -> Problem {
    let hosts = hosts.iter().map(|host| host.name.clone()).collect();
    Problem { severity: Severity::Error, check, hosts, what, fix }
}

fn warning(check: &'static str, hosts: &[&HostReport], what: String, fix: Option<String>) -> Problem {
    Problem { severity: Severity::Warning, ..error(check, hosts, what, fix) }
}

fn unreached(host: &HostReport) -> Option<Problem> {
    let trouble = host.trouble.clone()?;
    Some(error(trouble.check, &[host], trouble.what, trouble.fix))
}

/// A rank without Python cannot run; different ones read each other's data badly.
fn pythons(examined: &[(&HostReport, &Findings)]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (host, found) in examined {
        if found.python.is_none() {
            let what = "no Python was found there, neither python nor python3".to_owned();
            problems.push(error("python", &[host], what, Some(on(host, "sudo apt-get install -y python3"))));
        }
    }
    let minor = |version: &str| version.split('.').take(2).collect::<Vec<_>>().join(".");
    let versions =
        examined.iter().filter_map(|(host, found)| Some((*host, minor(&found.python.as_ref()?.version))));
    if let Some((what, hosts)) = differing("Python", versions) {
        let fix =
            "start the job with the same one everywhere: ronde run … /path/to/python train.py".to_owned();
        problems.push(warning("python", &hosts, what, Some(fix)));
    }
    problems
}

/// A framework that only some hosts have stops the job; different versions may not. Our own package is sent to hosts
/// that lack it.
fn packages(examined: &[(&HostReport, &Findings)]) -> Vec<Problem> {
    let with_python: Vec<_> =
        examined.iter().filter_map(|(host, found)| Some((*host, found.python.as_ref()?))).collect();
    let names: BTreeSet<&str> =
        with_python.iter().flat_map(|(_, python)| python.packages.keys().map(String::as_str)).collect();
    let mut problems = Vec::new();
    for name in names.into_iter().filter(|name| *name != "ronde") {
        let versions: Vec<_> = with_python
            .iter()
            .filter_map(|(host, python)| Some((*host, python.packages.get(name)?.clone())))
            .collect();
        // The version that the first host has is the one that the others should have.
        let wanted = versions.first().map_or("", |(_, version)| version.as_str());
        for (host, python) in &with_python {
            if !python.packages.contains_key(name) {
                let path = quoted(&python.path);
                let fix = on(host, &format!("{path} -m pip install {name}=={wanted}"));
                let what = format!("{name} is not installed there, though on {}", versions[0].0.name);
                problems.push(error("packages", &[host], what, Some(fix)));
            }
        }
        if let Some((what, hosts)) = differing(name, versions.iter().cloned()) {
            let other = versions.iter().find(|(_, version)| version != wanted);
            let python =
                other.and_then(|(host, _)| with_python.iter().find(|(with, _)| with.name == host.name));
            let fix = other.zip(python).map(|((host, _), (_, python))| {
                on(host, &format!("{} -m pip install {name}=={wanted}", quoted(&python.path)))
            });
            problems.push(warning("packages", &hosts, what, fix));
        }
    }
    problems
}

/// `torch is 2.15 on gpu1, gpu2, but 2.6 on gpu3`, if it differs.
fn differing<'a>(
    name: &str,
    versions: impl Iterator<Item = (&'a HostReport, String)>,
) -> Option<(String, Vec<&'a HostReport>)> {
    let mut groups: BTreeMap<String, Vec<&HostReport>> = BTreeMap::new();
    let mut order = Vec::new();
    for (host, version) in versions {
        if !groups.contains_key(&version) {
            order.push(version.clone());
        }
        groups.entry(version).or_default().push(host);
    }
    if groups.len() < 2 {
        return None;
    }
    let told: Vec<String> = order
        .iter()
        .map(|version| {
            let hosts: Vec<&str> = groups[version].iter().map(|host| host.name.as_str()).collect();
            format!("{version} on {}", hosts.join(", "))
        })
        .collect();
    let hosts = order.iter().flat_map(|version| groups[version].iter().copied()).collect();
    Some((format!("{name} is {}", told.join(", but ")), hosts))
}

fn clock(host: &HostReport) -> Option<Problem> {
    let ahead = host.clock_ahead.filter(|ahead| ahead.abs() > CLOCK_TOLERANCE)?;
    let side = if ahead > 0.0 { "ahead of" } else { "behind" };
    let what = format!("its clock is {:.1} s {side} this machine's", ahead.abs());
    Some(warning("clock", &[host], what, Some(on(host, "sudo timedatectl set-ntp true"))))
}

/// One direction is enough: whoever cannot dial is dialled.
fn separated(pair: &Pair, examined: &[(&HostReport, &Findings)]) -> Option<Problem> {
    if pair.best().is_some() {
        return None;
    }
    let own_network = |name: &String| {
        let found = examined.iter().find(|(host, _)| host.name == *name);
        found
            .is_some_and(|(_, found)| found.container.as_ref().is_some_and(|container| container.own_network))
    };
    let fix = match own_network(&pair.from) || own_network(&pair.to) {
        true => "give the containers the network of their machines: docker run --network host …",
        false => "open some ports in the firewalls, and name them: ronde run --port-range 30000-30999 …",
    };
    let reason = pair.forward.failure.as_deref().or(pair.backward.failure.as_deref());
    Some(Problem {
        severity: Severity::Error,
        check: "reach",
        hosts: vec![pair.from.clone(), pair.to.clone()],
        what: format!("neither reaches the other: {}", reason.unwrap_or("no answer")),
        fix: Some(fix.to_owned()),
    })
}

fn folder(host: &HostReport, found: &Findings) -> Option<Problem> {
    let (what, fix) = match found.folder {
        Folder::Missing => (
            "it does not have the current folder, which ranks run in",
            "put it on a shared disk, or send what is needed: ronde run --ship train.py …",
        ),
        Folder::Own => (
            "it has a folder of the current folder's name, but not the same one; what it holds may differ",
            "keep the two equal, or send what is needed: ronde run --ship train.py …",
        ),
        Folder::Shared | Folder::Unclear => return None,
    };
    Some(warning("folder", &[host], what.to_owned(), Some(fix.to_owned())))
}

fn limits(host: &HostReport, found: &Findings, ranks: u64) -> Vec<Problem> {
    let mut problems = Vec::new();
    // A rank may have a connection to every other, and one of each group it is in.
    let needed = OTHER_FILES + 4 * ranks;
    if found.open_files < needed {
        let what = format!(
            "a process may open {} files there, and {ranks} ranks may need {needed}",
            found.open_files
        );
        let fix = on(
            host,
            &format!("echo '* - nofile {}' | sudo tee -a /etc/security/limits.conf", needed.max(65536)),
        );
        problems.push(error("limits", &[host], what, Some(fix)));
    }
    if let (true, Some(bytes)) = (found.infiniband, found.locked_memory) {
        let what = format!(
            "a process may lock only {} of memory there, which InfiniBand needs more of",
            size(bytes)
        );
        let fix = on(host, "echo '* - memlock unlimited' | sudo tee -a /etc/security/limits.conf");
        problems.push(warning("limits", &[host], what, Some(fix)));
    }
    problems
}

fn container(host: &HostReport, found: &Findings) -> Vec<Problem> {
    let Some(container) = &found.container else { return Vec::new() };
    let mut problems = Vec::new();
    if container.shared_memory <= SMALL_SHARED_MEMORY {
        let size = size(container.shared_memory);
        let what =
            format!("its container has only {size} in /dev/shm, too little for workers that load data");
        let fix = match container.kind.as_str() {
            "kubernetes" => "mount an emptyDir with medium: Memory at /dev/shm".to_owned(),
            kind => format!(
                "{} run --shm-size=8g …  (or --ipc=host)",
                if kind == "podman" { kind } else { "docker" }
            ),
        };
        problems.push(warning("container", &[host], what, Some(fix)));
    }
    problems
}

/// A command to be run on a host.
fn on(host: &HostReport, command: &str) -> String {
    if host.this_machine {
        return command.to_owned();
    }
    let port = host.port.filter(|port| *port != 22).map(|port| format!("-p {port} ")).unwrap_or_default();
    // sudo may ask for a password, for which ssh needs a terminal there.
    let terminal = if command.contains("sudo") { "-t " } else { "" };
    format!("ssh {terminal}{port}{} {}", quoted(&host.name), quoted(command))
}

/// `64 MiB`.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests;
