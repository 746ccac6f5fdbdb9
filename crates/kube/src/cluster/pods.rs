//! One pod: what it holds of which node, and, if it is one of ours, how it is doing.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::nodes::is_device;
use super::requests::{self, Amounts};
use crate::job::names;

/// Which job a pod is of: what its labels say, and where it is.
///
/// Uids are no secret, and whoever may make pods anywhere may label them as they like. So a pod is a job's only in the
/// job's own namespace; anywhere else it is a claim like any other. Jobs that are run from inside one pod have that
/// pod's uid, and are told apart by their names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct JobKey {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for JobKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}/{}", self.uid, self.namespace, self.name)
    }
}

/// The order of claims: by when their first pod was created, and within a second by their job, of which the uid counts first.
///
/// It is the same for everybody and never changes. It says only who of two that see each other gives way: that nobody goes
/// on who does not see the other is not left to clocks (`course/claim.rs`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) created: Timestamp,
    pub(crate) job: JobKey,
}

/// What a whole set of pods claims; every pod of it says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) resource: String,
    pub(crate) nodes: BTreeMap<String, u32>,
}

/// What matters of any pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodEntry {
    /// The node it is on, or is meant for.
    pub(super) node: Option<String>,
    pub(super) holds: Amounts,
    pub(super) finished: bool,
    /// What people call it.
    pub(super) called: String,
    pub(super) since: Timestamp,
    pub(super) own: Option<Box<OwnPod>>,
}

/// A pod that was made here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OwnPod {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) job: String,
    pub(crate) job_uid: String,
    pub(crate) root: String,
    pub(crate) attempt: u32,
    pub(crate) is_chief: bool,
    pub(crate) uid: String,
    pub(crate) created: Timestamp,
    /// Counts all that is written, so of two states of a pod the one with the higher number is the newer.
    pub(crate) version: u64,
    pub(crate) claim: Option<Claim>,
    /// The node it is pinned to.
    pub(crate) pinned: String,
    pub(crate) gpus: u32,
    /// Thousandths of a CPU and bytes of memory that it asks for, with what others have added to what was asked for here.
    pub(crate) cpu_milli: u64,
    pub(crate) memory: u64,
    /// Whether our own gate is on it, and whether somebody else's is.
    pub(crate) gated: bool,
    pub(crate) foreign_gate: Option<String>,
    /// When our gate was taken off.
    pub(crate) placed: Option<Timestamp>,
    /// How long it may take to start from then on, in seconds.
    pub(crate) start_deadline: Option<u32>,
    pub(crate) bound: bool,
    /// What the scheduler says about a pod that it cannot place.
    pub(crate) unschedulable: Option<String>,
    pub(crate) terminating: bool,
    /// Why it was told to end before its time, if it was.
    pub(crate) told_to_end: Option<String>,
    /// Why the cluster takes it away, such as `EvictionByEvictionAPI`, and in whose words; said before it ends.
    pub(crate) disruption: Option<(String, String)>,
    pub(crate) phase: PodPhase,
    /// Why a container waits, such as `ImagePullBackOff`, and in whose words.
    pub(crate) waiting: Option<(String, String)>,
    /// Whether the image of the training container is there.
    pub(crate) pulled: bool,
    pub(crate) started: Option<Timestamp>,
    pub(crate) ended: Option<Ended>,
    pub(crate) ttl: Option<u32>,
    pub(crate) retries: u32,
    /// What its job asks for, as a number, if it says so.
    pub(crate) spec: Option<String>,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// How a pod, or its training container, ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ended {
    pub(crate) at: Option<Timestamp>,
    pub(crate) exit_code: Option<i32>,
    /// `OOMKilled`, `Evicted`, `DeadlineExceeded`, `Error`, …
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Taken away by the cluster, and not ended by itself.
    pub(crate) disrupted: bool,
    /// Ended by its manager, when the job was given up.
    pub(crate) given_up: bool,
    /// Turned away by its node: nothing of it ever started.
    pub(crate) refused: bool,
}

impl PodEntry {
    /// Reads a pod; none if it holds nothing and is not ours.
    pub(super) fn read(pod: &Pod) -> Option<PodEntry> {
        let spec = pod.spec.as_ref()?;
        let status = pod.status.as_ref();
        let phase = phase(pod);
        let finished = matches!(phase, PodPhase::Succeeded | PodPhase::Failed);
        let own = OwnPod::read(pod, spec);
        let nominated = status.and_then(|status| status.nominated_node_name.clone());
        let pinned = own.as_ref().map(|own| own.pinned.clone()).filter(|node| !node.is_empty());
        let node = spec.node_name.clone().filter(|node| !node.is_empty()).or(nominated).or(pinned);
        if own.is_none() && (finished || node.is_none()) {
            return None;
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let called = match &own {
            Some(own) => format!("job {}", own.job),
            None => format!("pod {namespace}/{name}"),
        };
        let started = status.and_then(|status| status.start_time.as_ref());
        let since =
            started.or(pod.metadata.creation_timestamp.as_ref()).map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let mut holds = requests::effective(spec);
        holds.retain(|name, amount| *amount > 0 && (is_device(name) || name == "cpu" || name == "memory"));
        Some(PodEntry { node, holds, finished, called, since, own: own.map(Box::new) })
    }
}

impl OwnPod {
    /// Reads a pod that was made here; none if it was not.
    pub(crate) fn read(pod: &Pod, spec: &PodSpec) -> Option<OwnPod> {
        let labels = pod.metadata.labels.as_ref()?;
        let annotations = pod.metadata.annotations.as_ref();
        let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
        let note = |name: &str| annotations.and_then(|notes| notes.get(name));
        if label(names::MANAGED_BY) != names::RONDE || label(names::JOB_UID).is_empty() {
            return None;
        }
        let status = pod.status.as_ref();
        let gates = spec.scheduling_gates.iter().flatten();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let unschedulable = conditions
            .into_iter()
            .flatten()
            .find(|one| one.type_ == "PodScheduled" && one.reason.as_deref() == Some("Unschedulable"))
            .map(|one| one.message.clone().unwrap_or_default());
        let claim: Option<Claim> = note(names::CLAIM).and_then(|text| serde_json::from_str(text).ok());
        let asks = requests::effective(spec);
        let asks_for = |resource: &str| asks.get(resource).copied().unwrap_or(0);
        let gpus = asks_for(claim.as_ref().map_or("", |claim| &claim.resource)).div_ceil(1000);
        let train = statuses(pod).find(|one| one.name == names::TRAIN);
        let running = train.and_then(|one| one.state.as_ref()?.running.as_ref());
        let ended = ended(pod, train);
        let started = running
            .and_then(|one| one.started_at.as_ref())
            .or_else(|| train.and_then(|one| one.state.as_ref()?.terminated.as_ref()?.started_at.as_ref()));
        Some(OwnPod {
            name: pod.metadata.name.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            job: label(names::JOB),
            job_uid: label(names::JOB_UID),
            root: label(names::ROOT),
            attempt: label(names::ATTEMPT).parse().unwrap_or(0),
            is_chief: label(names::ROLE) == "chief",
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            created: pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            version: pod.metadata.resource_version.as_ref().and_then(|it| it.parse().ok()).unwrap_or(0),
            claim,
            pinned: pinned(spec).unwrap_or_default(),
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            cpu_milli: asks_for("cpu"),
            memory: asks_for("memory").div_ceil(1000),
            gated: gates.clone().any(|gate| gate.name == names::GATE),
            foreign_gate: gates.clone().find(|gate| gate.name != names::GATE).map(|gate| gate.name.clone()),
            placed: note(names::PLACED).and_then(|text| text.parse().ok()),
            start_deadline: note(names::START_DEADLINE).and_then(|text| text.parse().ok()),
            bound: spec.node_name.as_ref().is_some_and(|node| !node.is_empty()),
            unschedulable,
            terminating: pod.metadata.deletion_timestamp.is_some(),
            told_to_end: note(names::ENDED).cloned(),
            disruption: disruption(pod),
            phase: phase(pod),
            waiting: waiting(pod),
            pulled: train.is_some_and(|one| !one.image_id.is_empty()),
            started: started.map(|time| time.0),
            ended,
            ttl: note(names::TTL).and_then(|text| text.parse().ok()),
            retries: note(names::RETRIES).and_then(|text| text.parse().ok()).unwrap_or(0),
            spec: note(names::SPEC).cloned(),
        })
    }

    /// The order in which a claim made of this pod alone would come.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket { created: self.created, job: self.key() }
    }

    /// Which job it is of.
    pub(crate) fn key(&self) -> JobKey {
        JobKey { uid: self.job_uid.clone(), namespace: self.namespace.clone(), name: self.job.clone() }
    }

    /// Whether its node has turned it away.
    pub(crate) fn is_refused(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.refused)
    }

    /// Whether it has ended, well or not.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }
}

fn phase(pod: &Pod) -> PodPhase {
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        _ => PodPhase::Pending,
    }
}

/// The node that a pod's required affinity names.
fn pinned(spec: &PodSpec) -> Option<String> {
    let required = spec
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = required.node_selector_terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    let mut named = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    named.next()?.values.as_ref()?.first().cloned()
}

/// All containers, those that run first included.
fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().flatten().chain(main.into_iter().flatten())
}

/// Why a container waits, if it is for more than its turn.
fn waiting(pod: &Pod) -> Option<(String, String)> {
    statuses(pod).find_map(|one| {
        let waiting = one.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone().unwrap_or_default();
        if matches!(reason.as_str(), "" | "PodInitializing" | "ContainerCreating") {
            return None;
        }
        Some((reason, waiting.message.clone().unwrap_or_default()))
    })
}

/// Why the cluster takes a pod away, if it does.
fn disruption(pod: &Pod) -> Option<(String, String)> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let found = conditions.find(|one| one.type_ == "DisruptionTarget" && one.status == "True")?;
    Some((found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default()))
}

fn ended(pod: &Pod, train: Option<&ContainerStatus>) -> Option<Ended> {
    let status = pod.status.as_ref()?;
    let is_failed = matches!(phase(pod), PodPhase::Failed | PodPhase::Succeeded);
    // The container that trains, or else the one that failed before it could start.
    let failed = statuses(pod)
        .find_map(|one| one.state.as_ref()?.terminated.as_ref().filter(|ended| ended.exit_code != 0));
    let terminated =
        train.and_then(|one| one.state.as_ref()?.terminated.as_ref()).or(failed.filter(|_| is_failed));
    if terminated.is_none() && !is_failed {
        return None;
    }
    let note = pod.metadata.annotations.as_ref().and_then(|notes| notes.get(names::ENDED));
    // What was told to end shows that as a deadline. It says nothing about a training that had ended before.
    let is_told = status.reason.as_deref() == Some("DeadlineExceeded");
    let pod_reason = match note.filter(|_| is_told) {
        Some(why) if why == names::DONE => String::new(),
        Some(why) => why.clone(),
        None => status.reason.clone().unwrap_or_default(),
    };
    let given_up = is_told && note.is_none_or(|why| why != names::DONE);
    let reason = match terminated.and_then(|ended| ended.reason.clone()) {
        Some(reason) if pod_reason.is_empty() => reason,
        _ if !pod_reason.is_empty() => pod_reason,
        _ => String::new(),
    };
    let message = terminated.and_then(|ended| ended.message.clone()).or_else(|| status.message.clone());
    Some(Ended {
        at: terminated.and_then(|ended| ended.finished_at.as_ref()).map(|time| time.0),
        exit_code: terminated.map(|ended| ended.exit_code),
        given_up,
        refused: phase(pod) == PodPhase::Failed && !statuses(pod).any(has_started) && is_refusal(&reason),
        disrupted: disruption(pod).is_some()
            || matches!(
                reason.as_str(),
                "Evicted"
                    | "NodeLost"
                    | "Shutdown"
                    | "NodeShutdown"
                    | "Terminated"
                    | "Preempting"
                    | "UnexpectedAdmissionError"
            ),
        reason,
        message: message.unwrap_or_default(),
    })
}

/// Whether a container runs or has run.
fn has_started(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
}

/// Whether a kubelet turns a pod away for such a reason: the node does not have what the scheduler thought it has, since
/// somebody went past the scheduler, or one of its devices is broken.
fn is_refusal(reason: &str) -> bool {
    // `OutOfcpu`, `OutOfmemory`, `OutOfpods`, `OutOfnvidia.com/gpu`.
    reason.starts_with("OutOf")
        || matches!(
            reason,
            "UnexpectedAdmissionError" | "TopologyAffinityError" | "NodeAffinity" | "NodeShutdown"
        )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_image_is_there_once_the_container_that_trains_has_one() {
        for (id, pulled) in [("", false), ("sha256:0f", true)] {
            let train =
                json!({"name": "train", "image": "i", "imageID": id, "ready": false, "restartCount": 0});
            let pod = json!({
                "metadata": {"labels": {names::MANAGED_BY: names::RONDE, names::JOB_UID: "uid-mnist"}},
                "spec": {"containers": []},
                "status": {"containerStatuses": [train]},
            });
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let own = OwnPod::read(&pod, pod.spec.as_ref().expect("a spec")).expect("ours");
            assert_eq!(own.pulled, pulled, "{id:?}");
        }
    }
}
