//! What an end means: success, another attempt, or failure; and what is left to do when all is over.
//!
//! The result of the chief's training decides, whatever other containers its pod may have. A pod that failed before the
//! chief did is what the message is about, since the chief then only tells of ranks that it lost.
//!
//! Pods whose logs are worth keeping are not deleted but end: a pod that has ended holds no GPU.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::status::{Said, told};
use super::{Action, Current, Decision, Observed, elsewhere, pause};
use crate::cluster::{OwnPod, PodPhase};
use crate::job::{Avoided, JobStatus, Phase, RootKind, names};

/// How long the chief may take to end by itself after a worker did; it knows best what happened.
const CHIEF_PATIENCE: SignedDuration = SignedDuration::from_secs(30);
/// The time before the second attempt; twice as long each time after that.
const FIRST_RETRY: i64 = 5;
const LONGEST_RETRY: i64 = 300;
/// How long a pod's other containers may go on after its training has ended.
const OTHERS_PATIENCE: SignedDuration = SignedDuration::from_secs(5);
/// How long a pod that was told to end may take longer than it should until it is deleted after all, and its logs with it.
const END_PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// How long a node on which a job was lost is left out.
const AVOID: SignedDuration = SignedDuration::from_secs(300);

/// Why an attempt failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    said: Said,
    pod: Option<String>,
    exit_code: Option<i32>,
    /// A node that is to blame.
    node: Option<String>,
    /// Another attempt would end the same way.
    for_good: bool,
}

impl Failure {
    pub(super) fn of(pod: &OwnPod, said: Said) -> Failure {
        let exit_code = pod.ended.as_ref().and_then(|ended| ended.exit_code);
        Failure { said, pod: Some(pod.name.clone()), exit_code, node: None, for_good: false }
            .blaming(is_disrupted(pod).then(|| pod.pinned.clone()))
    }

    /// Leaves this node out of the next attempt.
    pub(super) fn blaming(mut self, node: Option<String>) -> Failure {
        self.node = node;
        self
    }

    /// Another attempt would end the same way.
    pub(super) fn for_good(mut self) -> Failure {
        self.for_good = true;
        self
    }
}

/// Whether the training has ended well, if perhaps nobody has taken note of it yet.
pub(super) fn has_ended_well(current: &Current<'_>) -> bool {
    let ended = current.chief().and_then(|chief| chief.ended.as_ref());
    ended.is_some_and(|ended| ended.exit_code == Some(0))
}

/// Whether the current set has come to an end, and what then.
pub(super) fn ended(seen: &Observed<'_>, current: &Current<'_>) -> Option<Decision> {
    if let Some(refused) = refused(seen, current) {
        return Some(elsewhere::not_taken(seen, current, refused));
    }
    let chief = current.chief();
    if let Some(chief) = chief {
        let code = chief.ended.as_ref().and_then(|ended| ended.exit_code);
        match chief.phase {
            PodPhase::Pending => {}
            // The container says it a moment before the pod does, and another container may never end.
            _ if code == Some(0) => return Some(success(seen, current)),
            PodPhase::Succeeded => return Some(success(seen, current)),
            PodPhase::Running if code.is_none() => {}
            PodPhase::Running | PodPhase::Failed => {
                return Some(fail(seen, current, first_failure(current, chief)));
            }
        }
    }
    // From here on only of sets that the scheduler was let at.
    let is_past = current.pods.iter().any(|pod| !pod.gated)
        || matches!(seen.status.phase, Phase::Placing | Phase::Scheduled | Phase::Running)
            && seen.status.attempt == current.attempt;
    if !is_past {
        return None;
    }
    if let Some(lost) =
        current.pods.iter().find(|pod| pod.bound && !pod.is_finished() && seen.ledger.is_lost(&pod.pinned))
    {
        let said = format!("{}, where {} runs, does not answer any more", lost.pinned, lost.name);
        let failure = Failure::of(lost, Said::new("NodeLost", said)).blaming(Some(lost.pinned.clone()));
        return Some(fail(seen, current, failure));
    }
    // It will be gone in a moment, and with it the reason.
    let taken = current.pods.iter().find(|pod| pod.terminating && pod.disruption.is_some());
    if let Some(taken) = taken.filter(|pod| !pod.is_finished()) {
        return Some(fail(seen, current, Failure::of(taken, describe(taken))));
    }
    let has_run = seen.status.phase == Phase::Running || current.pods.iter().any(|pod| pod.started.is_some());
    if let Some(missing) = missing(current).filter(|_| !has_run) {
        let said = Said::new("PodDeleted", format!("{missing} was deleted before the training started"));
        let wait = pause(seen, 0.5, 60.0);
        let mut decision = release(seen, current, said);
        decision.status.attempt = current.attempt + 1;
        decision.status.yields = seen.status.yields.saturating_add(1);
        decision.status.not_before = seen.now.checked_add(wait).ok().map(Time);
        decision.wake = Some(wait);
        return Some(decision);
    }
    if let Some(missing) = missing(current) {
        let said = Said::new("PodDeleted", format!("{missing} was deleted while the job ran"));
        let failure = Failure { said, pod: None, exit_code: None, node: None, for_good: false };
        return Some(fail(seen, current, failure));
    }
    let failed = current.pods.iter().copied().filter(|pod| pod.phase == PodPhase::Failed);
    let first = failed.min_by_key(|pod| pod.ended.as_ref().and_then(|ended| ended.at))?;
    let since = first.ended.as_ref().and_then(|ended| ended.at).unwrap_or(seen.now);
    let waited = seen.now.duration_since(since);
    let is_over = waited >= CHIEF_PATIENCE || chief.is_none_or(|chief| chief.started.is_none());
    if is_over {
        return Some(fail(seen, current, Failure::of(first, describe(first))));
    }
    let said = Said::new("Ending", describe(first).message);
    let status = told(seen, seen.status.phase, current.attempt, said);
    Some(Decision { actions: Vec::new(), status, wake: Some(CHIEF_PATIENCE - waited) })
}

/// A pod that its node has turned away before the training started, which it does when all pods run. A kubelet that is
/// started anew may turn away a pod that has run, and nothing in the pod tells that any more; so one is counted as turned
/// away only if neither the last status nor the chief knows of a training.
fn refused<'a>(seen: &Observed<'_>, current: &Current<'a>) -> Option<&'a OwnPod> {
    let has_ended = current.chief().is_some_and(|chief| chief.ended.is_some() && !chief.is_refused());
    if seen.status.phase == Phase::Running || has_ended {
        return None;
    }
    current.pods.iter().copied().find(|pod| pod.is_refused())
}

/// A pod of the set that is not there any more.
fn missing(current: &Current<'_>) -> Option<String> {
    let gang = current.gang.as_ref();
    let Some(gang) = gang else { return Some("every pod".to_owned()) };
    let exists = |name: &str| current.pods.iter().any(|pod| pod.name == name);
    gang.members.iter().map(|member| &member.pod).find(|name| !exists(name)).map(|name| format!("pod {name}"))
}

fn success(seen: &Observed<'_>, current: &Current<'_>) -> Decision {
    let said = Said::new("Succeeded", "the training ended well");
    let mut status = told(seen, Phase::Succeeded, current.attempt, said);
    let chief = current.chief();
    status.finished = Some(Time(chief.and_then(|pod| pod.ended.as_ref()?.at).unwrap_or(seen.now)));
    status.started = status.started.or(chief.and_then(|pod| pod.started).map(Time));
    status.exit_code = Some(0);
    // Of an attempt before.
    status.failed_pod = None;
    finish(seen, current, status)
}

/// The attempt has failed: another one, or the end.
pub(super) fn fail(seen: &Observed<'_>, current: &Current<'_>, failure: Failure) -> Decision {
    // Chiefs that failed stay, so they can be counted by a manager that knows nothing else.
    let has_failed = |pod: &&&OwnPod| pod.is_chief && pod.phase == PodPhase::Failed && !pod.is_refused();
    let chiefs = current.earlier.iter().filter(has_failed).count();
    let failures = seen.status.failures.max(u32::try_from(chiefs).unwrap_or(u32::MAX)).saturating_add(1);
    if failure.for_good || failures > seen.job.spec.retries {
        let mut status = told(seen, Phase::Failed, current.attempt, failure.said);
        status.failures = failures;
        status.finished = Some(Time(seen.now));
        status.exit_code = failure.exit_code;
        status.failed_pod = failure.pod;
        return finish(seen, current, status);
    }
    let wait = (FIRST_RETRY << (failures - 1).min(10)).min(LONGEST_RETRY);
    let said = format!(
        "attempt {failures} of {} failed: {}; the next one starts in {wait} s",
        seen.job.spec.retries + 1,
        failure.said.message
    );
    let mut decision = release(seen, current, Said::new("Retrying", said));
    decision.status.failures = failures;
    decision.status.failed_pod = failure.pod;
    // From when the chief ended, if that is known: a manager that is started anew does not begin to wait anew.
    let since = current.chief().and_then(|chief| chief.ended.as_ref()?.at).unwrap_or(seen.now);
    let start = since.checked_add(SignedDuration::from_secs(wait)).unwrap_or(seen.now).max(seen.now);
    decision.status.not_before = Some(Time(start));
    decision.wake = super::sooner(decision.wake, Some(start.duration_since(seen.now)));
    if let Some(node) = failure.node {
        let until = seen.now.checked_add(AVOID).unwrap_or(seen.now);
        avoid(&mut decision.status, &node, until, &failure.said.reason);
    }
    decision
}

/// Fails for good, for a reason that lies with the job itself.
pub(super) fn give_up(seen: &Observed<'_>, current: &Current<'_>, said: Said) -> Decision {
    let failure = Failure { said, pod: None, exit_code: None, node: None, for_good: true };
    fail(seen, current, failure)
}

/// Deletes the current set, and waits for another.
pub(super) fn release(seen: &Observed<'_>, current: &Current<'_>, said: Said) -> Decision {
    let next = if current.pods.is_empty() { current.attempt } else { current.attempt + 1 };
    let status = told(seen, Phase::Pending, next, said);
    let (actions, wake) = put_away(seen, &status, current.attempt, &current.pods);
    Decision { actions, status, wake }
}

/// Leaves a node out for a while.
pub(super) fn avoid(status: &mut JobStatus, node: &str, until: Timestamp, why: &str) {
    status.avoid.retain(|one| one.node != node);
    status.avoid.push(Avoided { node: node.to_owned(), until: Time(until), why: why.to_owned() });
}

fn finish(seen: &Observed<'_>, current: &Current<'_>, mut status: JobStatus) -> Decision {
    // A manager that comes to it only now has not seen them before.
    if let Some(gang) = &current.gang {
        status.gpus = gang.gpus().to_string();
        status.nodes = gang.nodes();
    }
    tidy(&Observed { status: &status, ..*seen }, current)
}

/// All is over: GPUs are given back at once; the chief, and the pod that failed first, stay for their logs.
pub(super) fn tidy(seen: &Observed<'_>, current: &Current<'_>) -> Decision {
    let status = seen.status.clone();
    let (mut actions, wake) = put_away(seen, &status, current.attempt, &current.pods);
    let left = left(seen, &status);
    if left <= SignedDuration::ZERO {
        // What owns everything goes first: without its chief, a job that is still there would look as if it had been lost.
        let at = if seen.job.root.kind == RootKind::ConfigMap { 0 } else { actions.len() };
        if !status.swept {
            actions.insert(at, Action::Sweep);
        }
        return Decision { actions, status, wake };
    }
    Decision { actions, wake: super::sooner(wake, Some(left)), status }
}

/// How long what is left of a job that is over is kept.
fn left(seen: &Observed<'_>, status: &JobStatus) -> SignedDuration {
    let finished = status.finished.as_ref().map_or(seen.now, |time| time.0);
    let ttl = SignedDuration::from_secs(i64::from(seen.job.spec.ttl_seconds_after_finished));
    ttl - seen.now.duration_since(finished)
}

/// What becomes of pods that are not to go on, and when to look again. Those with logs worth keeping end, all others are
/// deleted; those that were turned away last, when nothing else of their set is left: as long as they are there, a manager
/// that knows nothing else sees why the others go. `attempt` is the job's current one.
pub(super) fn put_away(
    seen: &Observed<'_>,
    status: &JobStatus,
    attempt: u32,
    pods: &[&OwnPod],
) -> (Vec<Action>, Option<SignedDuration>) {
    let (mut deleted, mut ended, mut wake) = (Vec::new(), Vec::new(), None);
    let limit = SignedDuration::from_secs(i64::from(seen.job.spec.grace_seconds())) + END_PATIENCE;
    let goes = |pod: &&&OwnPod| !pod.is_refused() && !is_kept(seen, status, attempt, pod);
    let going: BTreeSet<u32> = pods.iter().filter(goes).map(|pod| pod.attempt).collect();
    for pod in pods.iter().filter(|pod| !pod.terminating) {
        if pod.is_refused() && going.contains(&pod.attempt) {
            continue;
        }
        if !is_kept(seen, status, attempt, pod) {
            deleted.push(Action::DeletePod { pod: pod.name.clone(), uid: pod.uid.clone() });
            continue;
        }
        if pod.is_finished() {
            continue;
        }
        let is_over = pod.ended.is_some();
        let since = pod.ended.as_ref().and_then(|ended| ended.at);
        let since = since.or(status.finished.as_ref().map(|time| time.0)).unwrap_or(seen.now);
        let waited = seen.now.duration_since(since);
        let patience = if is_over { OTHERS_PATIENCE } else { SignedDuration::ZERO };
        if waited >= limit {
            deleted.push(Action::DeletePod { pod: pod.name.clone(), uid: pod.uid.clone() });
        } else if waited < patience {
            wake = super::sooner(wake, Some(patience - waited));
        } else {
            if pod.told_to_end.is_none() {
                let why = if is_over { names::DONE } else { &status.reason };
                let (name, uid) = (pod.name.clone(), pod.uid.clone());
                ended.push(Action::EndPod { pod: name, uid, why: why.to_owned() });
            }
            wake = super::sooner(wake, Some(limit - waited));
        }
    }
    deleted.append(&mut ended);
    (deleted, wake)
}

/// Whether a pod that is not to go on stays for its logs. Chiefs of attempts that have failed also stay because they are
/// counted, by a manager that knows nothing else.
fn is_kept(seen: &Observed<'_>, status: &JobStatus, attempt: u32, pod: &OwnPod) -> bool {
    let has_ended = pod.is_chief && (pod.is_finished() || pod.ended.is_some()) && !pod.is_refused();
    if !status.phase.is_final() {
        return has_ended;
    }
    let is_result = pod.is_chief && pod.attempt == attempt;
    let is_culprit = status.failed_pod.as_deref() == Some(&pod.name);
    let has_logs = pod.started.is_some() || pod.is_finished();
    (has_ended || has_logs && (is_result || is_culprit)) && left(seen, status) > SignedDuration::ZERO
}

/// The pod that failed first, and how. The chief's own words count if it was the chief, or if a rank failed.
fn first_failure(current: &Current<'_>, chief: &OwnPod) -> Failure {
    let at = |pod: &OwnPod| pod.ended.as_ref().and_then(|ended| ended.at);
    let is_killed = |pod: &&&OwnPod| {
        is_disrupted(pod) || pod.ended.as_ref().is_some_and(|ended| ended.reason == "OOMKilled")
    };
    let is_earlier = |pod: &&&OwnPod| match (at(pod), at(chief)) {
        (Some(worker), Some(chief)) => worker <= chief,
        _ => true,
    };
    let workers = current.pods.iter().filter(|pod| !pod.is_chief).filter(is_killed).filter(is_earlier);
    let first = workers.min_by_key(|pod| at(pod)).copied().unwrap_or(chief);
    let mut failure = Failure::of(first, describe(first));
    failure.exit_code = chief.ended.as_ref().and_then(|ended| ended.exit_code).or(failure.exit_code);
    // A manager that was killed after it had ended the chief had no other attempt in mind.
    failure.for_good = chief.ended.as_ref().is_some_and(|ended| ended.given_up);
    failure
}

/// Whether the cluster has taken a pod away, or is about to.
fn is_disrupted(pod: &OwnPod) -> bool {
    pod.disruption.is_some() || pod.ended.as_ref().is_some_and(|ended| ended.disrupted)
}

/// How a pod ended, in words.
fn describe(pod: &OwnPod) -> Said {
    let nothing = crate::cluster::Ended::default();
    let ended = pod.ended.as_ref().unwrap_or(&nothing);
    let (name, node) = (&pod.name, &pod.pinned);
    let said = match (ended.reason.as_str(), &pod.disruption) {
        ("OOMKilled", _) => {
            format!("{name} on {node} ran out of memory; give it more with memoryPerGpu (--memory-per-gpu)")
        }
        ("Evicted", _) => format!("{name} was evicted from {node}: {}", ended.message),
        ("StartError", _) => {
            format!("{name} on {node} could not be started: {}", start_error(&ended.message))
        }
        ("DeadlineExceeded", _) => format!("{name} on {node} took longer than its deadline"),
        _ if ended.given_up => format!("{name} on {node} was ended ({})", ended.reason),
        (_, Some((reason, message))) => {
            return Said::new(reason, format!("{name} was taken off {node} ({reason}): {message}"));
        }
        _ if ended.disrupted => format!("{name} was taken off {node} ({}): {}", ended.reason, ended.message),
        _ => match ended.exit_code {
            Some(code) => format!("{name} on {node} ended with status {code}{}", last_word(&ended.message)),
            None if ended.message.is_empty() => format!("{name} on {node} failed ({})", ended.reason),
            None => format!("{name} on {node} failed: {}", ended.message),
        },
    };
    let reason = if ended.reason.is_empty() { "Error" } else { &ended.reason };
    Said::new(reason, said)
}

/// Why a container did not start, with the fix where it is known: a pod's own program is ours, or the image's.
fn start_error(message: &str) -> String {
    match message.contains("exec: \"ronde\": executable file not found") {
        true => "its image has no ronde on the PATH; without imageHasRonde (--image-has-ronde) it is brought"
            .to_owned(),
        false => message.to_owned(),
    }
}

/// What the launcher said about a failure, which is in the pod's status since that holds its last output.
fn last_word(output: &str) -> String {
    let said = output.lines().rev().find_map(|line| line.strip_prefix("error: "));
    said.map(|said| format!(": {said}")).unwrap_or_default()
}
