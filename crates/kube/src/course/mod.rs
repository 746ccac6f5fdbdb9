//! What to do next about a job: everything observed goes in, actions and the job's status come out, with the reason.
//!
//! Nothing is remembered that cannot be seen in the cluster. A manager that is killed after any action and started anew
//! observes again, and goes on; so nearly every action may be repeated, and those that may not are guarded by uids.
//!
//! ```text
//! Pending ─ planned ─▶ Claimed ─ listed again, still ours ─▶ Placing ─▶ Scheduled ─▶ Running ─▶ Succeeded, Failed
//!    ▲                    │ another set came first              │ no place in time        │ failed, with retries left
//!    └────────────────────┴──────────── all pods deleted ───────┴──────────────────────────┘
//! ```
//! `claim.rs` goes from waiting to a safe claim, `watching.rs` from there to running pods, `elsewhere.rs` back if a node does
//! not take one, `ending.rs` says what an end means and what is left to do then, `setback.rs` what follows if the API server
//! does not take an action.

mod claim;
mod elsewhere;
mod ending;
mod setback;
#[cfg(test)]
mod simulation;
mod status;
#[cfg(test)]
mod tests;
mod watching;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::cluster::{GangKey, JobKey, Ledger, OwnPod};
use crate::fingerprint::fingerprint;
use crate::job::{Gang, Job, JobStatus, Phase, validate};

pub(crate) use setback::{Kind as SetbackKind, Setback, answer};
pub(crate) use status::Said;

/// Everything that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed<'a> {
    pub(crate) job: &'a Job,
    /// The last decision's status, if it is still known.
    pub(crate) status: &'a JobStatus,
    pub(crate) ledger: &'a Ledger,
    /// Whether our own pods in the ledger were listed after the job's set was complete.
    pub(crate) listed: bool,
    /// Whether it is this job's turn to claim GPUs; if not, what it waits for.
    pub(crate) turn: Result<(), &'a str>,
    pub(crate) now: Timestamp,
}

/// What to do, in this order, and what to tell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    pub(crate) actions: Vec<Action>,
    pub(crate) status: JobStatus,
    /// When to look again, if nothing happens before.
    pub(crate) wake: Option<SignedDuration>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Make the services and the secret, if they are not there, and write down what was planned. The chief, to which one
    /// service belongs, has this uid.
    Support { gang: Gang, chief: String },
    /// Make one pod of a set, gated.
    CreatePod { gang: Gang, member: usize },
    /// List our own pods anew, then decide again with `listed`.
    List,
    /// Let the scheduler at a pod.
    Ungate { pod: String, uid: String },
    /// Delete a pod, with its usual grace.
    DeletePod { pod: String, uid: String },
    /// Have a pod end, with its usual grace; it stays, with its logs.
    EndPod { pod: String, uid: String, why: String },
    /// Delete everything that is left of the job besides pods, once.
    Sweep,
}

impl Action {
    /// Whether it gives something back, and makes or changes nothing else.
    pub(crate) fn frees(&self) -> bool {
        matches!(self, Action::DeletePod { .. } | Action::EndPod { .. } | Action::Sweep)
    }
}

/// The job's current set of pods.
#[derive(Clone, Debug)]
pub(crate) struct Current<'a> {
    pub(crate) attempt: u32,
    /// Its pods that exist, by name; none if there is no current set.
    pub(crate) pods: Vec<&'a OwnPod>,
    /// What it is to be, as its pods say.
    pub(crate) gang: Option<Gang>,
    /// Pods of earlier sets, and those that are not part of any.
    pub(crate) earlier: Vec<&'a OwnPod>,
}

impl<'a> Current<'a> {
    pub(crate) fn of(seen: &Observed<'a>) -> Current<'a> {
        let pods = seen.ledger.pods_of(&seen.job.key());
        let newest = pods.iter().map(|pod| pod.attempt).max().unwrap_or(0);
        let mut attempt = newest.max(seen.status.attempt);
        // A set that is all gated and being deleted was given up, also if nobody could write that down.
        let is_given_up = |pod: &&&OwnPod| pod.attempt == attempt && pod.terminating && pod.gated;
        let mine = pods.iter().filter(|pod| pod.attempt == attempt).count();
        if mine > 0 && pods.iter().filter(is_given_up).count() == mine {
            attempt += 1;
        }
        let (pods, mut earlier): (Vec<&OwnPod>, Vec<&OwnPod>) =
            pods.into_iter().partition(|pod| pod.attempt == attempt);
        // Two managers of one job may plan at the same time. The set is what its safe pods say, or else its oldest; what
        // the other has made of it is not part of it.
        let order = |pod: &&&OwnPod| (pod.gated, pod.created, pod.uid.clone());
        let claim = pods.iter().filter(|pod| pod.claim.is_some()).min_by_key(order);
        let claim = claim.and_then(|pod| pod.claim.clone());
        let (strays, pods): (Vec<&OwnPod>, Vec<&OwnPod>) =
            pods.into_iter().partition(|pod| pod.gated && pod.claim != claim);
        earlier.extend(strays);
        let gang = claim.map(|claim| Gang::new(&seen.job.name, attempt, &claim.nodes));
        Current { attempt, pods, gang, earlier }
    }

    pub(crate) fn key(&self, job: &Job) -> GangKey {
        GangKey { job: job.key(), attempt: self.attempt }
    }

    pub(crate) fn chief(&self) -> Option<&'a OwnPod> {
        self.pods.iter().copied().find(|pod| pod.is_chief)
    }
}

/// Decides.
pub(crate) fn decide(seen: &Observed<'_>) -> Decision {
    let current = Current::of(seen);
    if seen.job.deleting {
        let everything = current.pods.iter().chain(&current.earlier);
        return Decision { actions: delete(everything.copied()), status: seen.status.clone(), wake: None };
    }
    let mut decision = next(seen, &current);
    // A deletion that failed is made up for before anything else: what is left of earlier sets holds GPUs, perhaps those
    // that the next one is to have.
    let (mut actions, wake) = ending::put_away(seen, &decision.status, current.attempt, &current.earlier);
    actions.append(&mut decision.actions);
    Decision { actions, wake: sooner(decision.wake, wake), ..decision }
}

/// Of two times to wake up the first.
fn sooner(one: Option<SignedDuration>, other: Option<SignedDuration>) -> Option<SignedDuration> {
    one.into_iter().chain(other).min()
}

/// What to do about the job's current set.
fn next(seen: &Observed<'_>, current: &Current<'_>) -> Decision {
    if seen.status.phase.is_final() {
        return ending::tidy(seen, current);
    }
    if let Err(problems) = validate(&seen.job.name, &seen.job.spec) {
        return ending::give_up(seen, current, Said::new("Invalid", problems.join("; ")));
    }
    if seen.job.spec.suspend && !ending::has_ended_well(current) {
        let mut decision = ending::release(seen, current, Said::new("Suspended", "the job is suspended"));
        decision.status.phase = Phase::Suspended;
        decision.status.not_before = None;
        decision.status.waiting_since = None;
        return decision;
    }
    if let Some(decision) = ending::ended(seen, current) {
        return decision;
    }
    let mut decision = match &current.gang {
        None => claim::plan(seen, current),
        Some(gang) if current.pods.iter().all(|pod| pod.gated) => claim::secure(seen, current, gang),
        Some(gang) => watching::watch(seen, current, gang),
    };
    status::complete(&mut decision.status, seen);
    decision
}

/// How long to wait before beginning anew: `first` seconds, twice as long each time after that, up to `longest`; not the
/// same for two jobs, so that those who were in each other's way are not again.
pub(crate) fn pause(seen: &Observed<'_>, first: f64, longest: f64) -> SignedDuration {
    let wait = doubled(first, seen.status.yields, longest);
    SignedDuration::from_secs_f64(wait * (0.5 + spread(&seen.job.key(), seen.status.yields)))
}

/// A time that is doubled so often, up to `longest`.
fn doubled(first: f64, times: u32, longest: f64) -> f64 {
    (first * f64::from(1u32 << times.min(16))).min(longest)
}

/// Deletes these pods, except those that are being deleted.
pub(crate) fn delete<'a>(pods: impl IntoIterator<Item = &'a OwnPod>) -> Vec<Action> {
    let live = pods.into_iter().filter(|pod| !pod.terminating);
    live.map(|pod| Action::DeletePod { pod: pod.name.clone(), uid: pod.uid.clone() }).collect()
}

/// A number between 0 and 1 that differs from job to job and from try to try, so that those who collided do not again.
fn spread(job: &JobKey, count: u32) -> f64 {
    let bytes = job.uid.bytes().chain(job.name.bytes()).chain(count.to_le_bytes());
    (fingerprint(bytes) >> 11) as f64 / (1u64 << 53) as f64
}
