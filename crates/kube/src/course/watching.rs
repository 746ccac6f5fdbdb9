//! From a safe claim to running pods: whoever cannot be placed or cannot start releases the whole set. So does one that its
//! node turns away, since somebody who did not ask the scheduler has its GPUs: nothing of the job has failed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::ending::{self, Failure};
use super::status::{Said, told};
use super::{Action, Current, Decision, Observed, claim, elsewhere};
use crate::cluster::{OwnPod, PodPhase};
use crate::job::{Gang, JobStatus, Phase};

/// How long the scheduler may take to find a place for a pod that has been promised one.
pub(super) const PLACE_PATIENCE: SignedDuration = SignedDuration::from_secs(10);
/// How long an image may fail to come before the attempt has failed.
const IMAGE_PATIENCE: SignedDuration = SignedDuration::from_secs(45);

/// The scheduler was let at some pods: sees to the rest, and how they get on.
pub(super) fn watch(seen: &Observed<'_>, current: &Current<'_>, gang: &Gang) -> Decision {
    // The first was let go only because the claim was safe, so the others may follow.
    let actions: Vec<Action> = claim::ungate(current).collect();
    let placed = current.pods.iter().filter_map(|pod| pod.placed).max().unwrap_or(seen.now);
    let waited = seen.now.duration_since(placed);
    let tell = |phase: Phase, said: Said, wake: Option<SignedDuration>| Decision {
        actions: actions.clone(),
        status: with_shares(told(seen, phase, current.attempt, said), gang),
        wake,
    };
    let start_limit = SignedDuration::from_secs(i64::from(seen.job.spec.start_deadline_seconds));
    let left = |limit: SignedDuration| Some((limit - waited).max(SignedDuration::from_millis(100)));

    if let Some(pod) = current.pods.iter().find(|pod| pod.foreign_gate.is_some() && !pod.bound) {
        let gate = pod.foreign_gate.as_deref().unwrap_or_default();
        let said = format!("{} is held back by {gate}", pod.name);
        return tell(Phase::Placing, Said::new("HeldBack", said), None);
    }
    if seen.status.reason == "HeldBack" {
        // The time that others took does not count: the pods are placed anew.
        let unbound = current.pods.iter().filter(|pod| !pod.bound && !pod.terminating);
        let mut decision = tell(
            Phase::Placing,
            Said::new("Placing", "the scheduler was let at all pods"),
            Some(PLACE_PATIENCE),
        );
        decision.actions =
            unbound.map(|pod| Action::Ungate { pod: pod.name.clone(), uid: pod.uid.clone() }).collect();
        return decision;
    }
    let unplaced =
        current.pods.iter().find(|pod| !pod.bound && !pod.is_finished() && pod.unschedulable.is_some());
    if let Some(pod) = unplaced.filter(|_| waited >= PLACE_PATIENCE) {
        return elsewhere::not_taken(seen, current, pod);
    }
    if let Some(pod) = current.pods.iter().find(|pod| !pod.bound && !pod.is_finished()) {
        if waited >= start_limit {
            return elsewhere::not_taken(seen, current, pod);
        }
        let said = format!("{} waits for the scheduler", pod.name);
        let patience = if unplaced.is_some() { PLACE_PATIENCE } else { start_limit };
        return tell(Phase::Placing, Said::new("Placing", said), left(patience));
    }
    if let Some(pod) = current.pods.iter().find(|pod| !pod.is_finished() && pod.started.is_none()) {
        let stuck = stuck_since(seen, current);
        let lasts = stuck.map_or(SignedDuration::ZERO, |since| seen.now.duration_since(since));
        if let Some(failure) = current.pods.iter().find_map(|pod| cannot_start(pod, lasts)) {
            return ending::fail(seen, current, failure);
        }
        if waited >= start_limit {
            let why = pod.waiting.as_ref().map(|(reason, message)| format!(": {}", plainly(reason, message)));
            let said = format!(
                "{} on {} had not started {} s after it was placed{}",
                pod.name,
                pod.pinned,
                start_limit.as_secs(),
                why.unwrap_or_default()
            );
            return ending::fail(
                seen,
                current,
                Failure::of(pod, Said::new("StartDeadline", said)).blaming(Some(pod.pinned.clone())),
            );
        }
        let patience = stuck.map(|_| (IMAGE_PATIENCE - lasts).max(SignedDuration::from_millis(100)));
        let wake = super::sooner(left(start_limit), patience);
        let mut decision = tell(Phase::Scheduled, starting(current, pod), wake);
        decision.status.stuck_since = stuck.map(Time);
        return decision;
    }
    running(seen, current, gang, &tell)
}

/// All pods run, or have run.
fn running(
    seen: &Observed<'_>,
    current: &Current<'_>,
    gang: &Gang,
    tell: &dyn Fn(Phase, Said, Option<SignedDuration>) -> Decision,
) -> Decision {
    let started = current.pods.iter().filter_map(|pod| pod.started).max();
    let limit = seen.job.spec.deadline_seconds.map(|limit| SignedDuration::from_secs(i64::from(limit)));
    let lasted = started.map_or(SignedDuration::ZERO, |started| seen.now.duration_since(started));
    if let Some(limit) = limit.filter(|limit| lasted >= *limit) {
        let said = format!("the training took longer than its deadline of {} s", limit.as_secs());
        return ending::give_up(seen, current, Said::new("DeadlineExceeded", said));
    }
    let said = Said::new("Running", format!("running on {}", gang.nodes()));
    let mut decision = tell(Phase::Running, said, limit.map(|limit| limit - lasted));
    decision.status.started = started.map(Time);
    decision
}

fn with_shares(mut status: JobStatus, gang: &Gang) -> JobStatus {
    status.gpus = gang.gpus().to_string();
    status.nodes = gang.nodes();
    if matches!(status.phase, Phase::Scheduled | Phase::Running) {
        status.yields = 0;
    }
    status
}

/// Since when some pod cannot start, without a break. What fails once, as a pull from a busy registry does, may go well the
/// next time.
fn stuck_since(seen: &Observed<'_>, current: &Current<'_>) -> Option<Timestamp> {
    let is_stuck = current.pods.iter().any(|pod| pod.waiting.is_some());
    is_stuck.then(|| seen.status.stuck_since.as_ref().map_or(seen.now, |since| since.0))
}

/// Why a pod will not start, if it has been so for `stuck`.
fn cannot_start(pod: &OwnPod, stuck: SignedDuration) -> Option<Failure> {
    let (reason, message) = pod.waiting.as_ref()?;
    // Another attempt would meet the same image.
    let is_for_good = matches!(reason.as_str(), "InvalidImageName" | "ErrImageNeverPull");
    let patience = match reason.as_str() {
        _ if is_for_good => SignedDuration::ZERO,
        "ErrImagePull"
        | "ImagePullBackOff"
        | "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | "ImageInspectError"
        | "RegistryUnavailable" => IMAGE_PATIENCE,
        _ => return None,
    };
    if stuck < patience || pod.phase == PodPhase::Running {
        return None;
    }
    let said = Said::new(
        common(reason),
        format!("{} on {} cannot start: {}", pod.name, pod.pinned, plainly(reason, message)),
    );
    let failure = Failure::of(pod, said);
    Some(if is_for_good { failure.for_good() } else { failure })
}

/// What is going on while pods start.
fn starting(current: &Current<'_>, first: &OwnPod) -> Said {
    let troubled = current.pods.iter().find_map(|pod| pod.waiting.as_ref().map(|waiting| (pod, waiting)));
    if let Some((pod, (reason, message))) = troubled {
        let said = format!("{} on {}: {}", pod.name, pod.pinned, plainly(reason, message));
        return Said::new(common(reason), said);
    }
    Said::new("Starting", format!("{} on {} starts", first.name, first.pinned))
}

/// One word for both of the states between which an image that cannot be pulled goes to and fro.
fn common(reason: &str) -> &str {
    if reason == "ErrImagePull" { "ImagePullBackOff" } else { reason }
}

/// What the kubelet's words mean.
fn plainly(reason: &str, message: &str) -> String {
    let words = match reason {
        "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" => "its image cannot be pulled",
        "InvalidImageName" => "its image's name is not valid",
        "ErrImageNeverPull" => "its image is not on the node, and may not be pulled",
        "CreateContainerConfigError" => "something that it refers to is missing",
        _ => "its container cannot be made",
    };
    // What lies behind a pause is what is worth knowing.
    let cause = message.split_once(": ErrImagePull: ").map_or(message, |(_, cause)| cause);
    let reason = common(reason);
    if cause.is_empty() { format!("{words} ({reason})") } else { format!("{words} ({reason}: {cause})") }
}
