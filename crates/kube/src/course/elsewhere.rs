//! Nodes that do not take a pod, or would not: the whole set is given back, and the next plan does without them for a while.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use ronde_placement::Reason;

use super::status::Said;
use super::watching::PLACE_PATIENCE;
use super::{Current, Decision, Observed, doubled, ending, pause};
use crate::cluster::OwnPod;

/// How long to wait after the first time that a pod got no place; twice as long each time after that.
const FIRST_PAUSE: f64 = 0.5;
const LONGEST_PAUSE: f64 = 60.0;
/// How long a node that did not take a pod is left out at least, and at most.
const AVOID: SignedDuration = SignedDuration::from_secs(60);
const LONGEST_AVOID: SignedDuration = SignedDuration::from_hours(24);

/// The scheduler or the node did not take this pod, nor perhaps others: plans anew without all of their nodes.
pub(super) fn not_taken(seen: &Observed<'_>, current: &Current<'_>, pod: &OwnPod) -> Decision {
    let is_other = |other: &&&OwnPod| other.name != pod.name && why(other).is_some();
    let others: Vec<&OwnPod> = current.pods.iter().filter(is_other).copied().collect();
    let words = why(pod).unwrap_or_else(|| "the scheduler did not answer".to_owned());
    let mut said = format!("{} did not get its place on {}: {words}", pod.name, pod.pinned);
    if !others.is_empty() {
        said.push_str(&format!("; nor did {} more", others.len()));
    }
    let nodes =
        others.iter().chain([&pod]).map(|pod| (pod.pinned.clone(), "it did not take a pod".to_owned()));
    let patience = match why(pod) {
        Some(_) => PLACE_PATIENCE,
        None => SignedDuration::from_secs(i64::from(seen.job.spec.start_deadline_seconds)),
    };
    without(seen, current, said, &nodes.collect(), patience)
}

/// These nodes have too little besides GPUs for the pods as they were made.
pub(super) fn too_little(
    seen: &Observed<'_>,
    current: &Current<'_>,
    nodes: &BTreeMap<String, Reason>,
) -> Decision {
    let words: Vec<String> = nodes.iter().map(|(node, reason)| format!("{node} {reason}")).collect();
    let said = format!("not all pods have a place: {}", words.join(", "));
    let nodes = nodes.iter().map(|(node, reason)| (node.clone(), format!("it {reason}")));
    without(seen, current, said, &nodes.collect(), SignedDuration::ZERO)
}

/// Gives everything back and plans anew without these nodes, each left out for a reason; it took `patience` to know it.
fn without(
    seen: &Observed<'_>,
    current: &Current<'_>,
    said: String,
    nodes: &BTreeMap<String, String>,
    patience: SignedDuration,
) -> Decision {
    let until = seen.now.checked_add(left_out_for(seen, nodes, patience)).unwrap_or(seen.now);
    let mut decision = ending::release(seen, current, Said::new("NotPlaced", said));
    nodes.iter().for_each(|(node, why)| ending::avoid(&mut decision.status, node, until, why));
    let wait = pause(seen, FIRST_PAUSE, LONGEST_PAUSE);
    decision.status.yields = seen.status.yields.saturating_add(1);
    decision.status.not_before = seen.now.checked_add(wait).ok().map(Time);
    decision.wake = Some(wait);
    decision
}

/// Why the scheduler or the node did not take a pod, in their words.
fn why(pod: &OwnPod) -> Option<String> {
    let refusal = pod.ended.as_ref().filter(|ended| ended.refused);
    let refusal = refusal.map(|ended| match ended.message.is_empty() {
        true => ended.reason.clone(),
        false => format!("{} ({})", ended.message, ended.reason),
    });
    refusal.or_else(|| pod.unschedulable.clone().filter(|_| !pod.bound))
}

/// How long these nodes are left out, of which it took this time to learn that they do not take a pod.
///
/// What keeps pods off them may stay, and may keep them off many: a volume in another zone, a device that is not planned
/// with. The plan is made for the best of the nodes that are not left out, so the right one must be found before the first
/// of the wrong ones come back. Hence twice the time that trying as many takes as are left out: they become more and more
/// as long as there are others to try, however many that are. In a small cluster each comes back after minutes.
fn left_out_for(
    seen: &Observed<'_>,
    nodes: &BTreeMap<String, String>,
    patience: SignedDuration,
) -> SignedDuration {
    let before = seen.status.avoid.iter().filter(|one| one.until.0 > seen.now);
    let before = before.filter(|one| !nodes.contains_key(&one.node)).count();
    let tries = (before + nodes.len()).div_ceil(nodes.len().max(1));
    // Pauses vary by half, and may still grow.
    let pause = doubled(FIRST_PAUSE, seen.status.yields.saturating_add(1), LONGEST_PAUSE) * 1.5;
    let each = patience + SignedDuration::from_secs_f64(pause);
    let all = each.saturating_mul(2).saturating_mul(i32::try_from(tries).unwrap_or(i32::MAX));
    all.clamp(AVOID, LONGEST_AVOID)
}
