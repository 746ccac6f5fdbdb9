//! GPUs and slots: who would have to share, who would have none, and what stays unused.
//!
//! Only where any host has a GPU are they expected of all. Sharing works, so it is a warning; a host without any among
//! hosts with some is an error, because its ranks would run something else than the others.

use super::{differing, error, on, warning};
use crate::doctor::question::Findings;
use crate::doctor::report::{HostReport, Problem, Severity};
use crate::gpus::VISIBLE;
use crate::report::counted;

type Examined<'a> = [(&'a HostReport, &'a Findings)];

pub(super) fn gpus(examined: &Examined<'_>) -> Vec<Problem> {
    let any = examined.iter().any(|(_, found)| usable(found) > 0);
    let mut problems: Vec<Problem> =
        examined.iter().filter_map(|(host, found)| unusable(host, found, any)).collect();
    problems.extend(examined.iter().filter_map(|(host, found)| hidden(host, found)));
    problems.extend(examined.iter().filter_map(|(host, found)| shared(host, found)));
    problems.extend(unused(examined));
    let drivers = examined.iter().filter_map(|(host, found)| {
        let gpu = found.gpus.as_ref()?.first()?;
        Some((*host, gpu.driver.clone()))
    });
    if let Some((what, hosts)) = differing("the NVIDIA driver", drivers) {
        problems.push(warning("gpus", &hosts, what, None));
    }
    problems
}

/// How many GPUs ranks can use there.
fn usable(found: &Findings) -> usize {
    if lacks_library(found) { 0 } else { found.visible_gpus }
}

/// How many it has, visible or not.
fn present(found: &Findings) -> usize {
    found.gpus.as_ref().map_or(0, Vec::len)
}

/// Whether it has GPUs and nothing to use them with. Only a Python can tell, so where there is none it is not said.
fn lacks_library(found: &Findings) -> bool {
    present(found) > 0 && found.python.is_some() && found.cuda.is_none()
}

/// A host on which no GPU can be used. If that is the case everywhere, only what looks like an oversight is said.
fn unusable(host: &HostReport, found: &Findings, others_have: bool) -> Option<Problem> {
    if usable(found) > 0 {
        return None;
    }
    let slots = counted(host.slots, "slot");
    let have = counted(present(found), "GPU");
    let (what, fix) = match &found.gpus {
        None if others_have => (
            format!("it has no NVIDIA driver and so no GPU that can be used, for {slots}"),
            format!("leave {} out of -H, or install the NVIDIA driver there", host.name),
        ),
        Some(gpus) if gpus.is_empty() && others_have => {
            (format!("nvidia-smi shows no GPU, for {slots}"), on(host, "nvidia-smi"))
        }
        Some(gpus) if lacks_library(found) => (
            format!("it has {have}, but the driver's library, libcuda.so.1, cannot be opened there"),
            match &found.container {
                Some(container) if container.kind == "kubernetes" => {
                    "ask for GPUs in the pod's resources: nvidia.com/gpu".to_owned()
                }
                Some(_) => "give the container its GPUs: docker run --gpus all …".to_owned(),
                None => format!("install the libraries of the NVIDIA driver {} there", gpus[0].driver),
            },
        ),
        Some(gpus) if !gpus.is_empty() => {
            let mask = found.visible_devices.as_deref().unwrap_or_default();
            let what = format!("{VISIBLE}={mask:?} is set there, which hides all of its GPUs ({have})");
            (what, format!("unset {VISIBLE} there, if the job should use them"))
        }
        _ => return None,
    };
    let severity = if others_have { Severity::Error } else { Severity::Warning };
    Some(Problem { severity, ..error("gpus", &[host], what, Some(fix)) })
}

/// A host that shows its programs only some of its GPUs.
fn hidden(host: &HostReport, found: &Findings) -> Option<Problem> {
    let mask = found.visible_devices.as_deref()?;
    let (have, seen) = (present(found), usable(found));
    if seen == 0 || seen >= have {
        return None;
    }
    let what =
        format!("{VISIBLE}={mask} is set there, which shows only {seen} of its {}", counted(have, "GPU"));
    Some(warning("gpus", &[host], what, Some(format!("unset {VISIBLE} there, if the job should use all"))))
}

/// A host whose ranks outnumber its GPUs.
fn shared(host: &HostReport, found: &Findings) -> Option<Problem> {
    let (have, slots) = (usable(found), host.slots);
    if have == 0 || have >= slots {
        return None;
    }
    let together = slots.div_ceil(have);
    let sharing = match slots.is_multiple_of(have) {
        true => format!("{together} ranks will share each GPU"),
        false => format!("up to {together} ranks will share a GPU"),
    };
    let what = format!(
        "it has {} for {slots} slots: {sharing}; NCCL does not do that, Ronde's path inside the device does",
        counted(have, "GPU")
    );
    let fix = format!(
        "let scripts choose by local_rank() % number of GPUs, or give it fewer slots: -H …,{}:{have}",
        host.name
    );
    Some(warning("gpus", &[host], what, Some(fix)))
}

/// Hosts with different numbers of GPUs whose slots do not follow.
fn unused(examined: &Examined<'_>) -> Option<Problem> {
    let with: Vec<(&HostReport, usize)> =
        examined.iter().map(|(host, found)| (*host, usable(found))).filter(|(_, count)| *count > 0).collect();
    let differ = with.iter().any(|(_, count)| *count != with[0].1);
    let idle: Vec<&HostReport> =
        with.iter().filter(|(host, count)| *count > host.slots).map(|(host, _)| *host).collect();
    if !differ || idle.is_empty() {
        return None;
    }
    let each: Vec<String> = with
        .iter()
        .map(|(host, count)| {
            format!("{} {} for {}", host.name, counted(*count, "GPU"), counted(host.slots, "slot"))
        })
        .collect();
    let what = format!("hosts have different numbers of GPUs, and some stay unused: {}", each.join(", "));
    let wanted: Vec<String> = with.iter().map(|(host, count)| format!("{}:{count}", host.name)).collect();
    Some(warning("gpus", &idle, what, Some(format!("give every GPU a slot: -H {}", wanted.join(",")))))
}
