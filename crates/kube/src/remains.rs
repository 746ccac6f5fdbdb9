//! What is left of jobs of `ronde kube run`, and when it goes.
//!
//! Such a job has no record in the cluster but its pods. Whoever runs a job in the same namespace next, or the controller,
//! finds them and deletes all that belongs to a job whose time is over: the finished ones that were kept for their logs
//! long enough, and those whose command was killed before their pods were let at the scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::act::Hands;
use crate::cluster::{JobKey, Ledger, OwnPod, STALE};
use crate::job::{Root, RootKind};
use crate::view::View;

/// How long a job that may make another attempt is waited for: it may wait for GPUs as long.
const NEXT_ATTEMPT: SignedDuration = SignedDuration::from_hours(24);
/// How long to wait before trying again to delete the same.
const AGAIN: Duration = Duration::from_secs(30);

/// A job that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Remains {
    job: String,
    namespace: String,
    root: Root,
    /// Name and uid of each pod.
    pods: Vec<(String, String)>,
}

/// Deletes what is left of jobs whose time is over, in all namespaces or in this one. Whoever comes next will try again
/// what did not work.
pub(crate) async fn clear_away(hands: &Hands, view: &View, namespace: Option<&str>) {
    let over = expired(&view.ledger(), hands.clock.now());
    for one in over.into_iter().filter(|one| namespace.is_none_or(|namespace| namespace == one.namespace)) {
        if hands.rest(&one.root.uid).is_some() {
            continue;
        }
        hands.rest_for(&one.root.uid, AGAIN);
        // The root takes its pods along, except a pod that is one: that is somebody's to keep.
        let are_gone = match one.root.kind {
            RootKind::Pod => hands.delete_pods(&one.namespace, &one.pods).await,
            RootKind::ConfigMap | RootKind::RondeJob => Ok(()),
        };
        if are_gone.is_ok() {
            let _ = hands.sweep(&one.job, &one.namespace, &one.root).await;
        }
    }
}

/// Jobs of `ronde kube run` that were kept long enough.
fn expired(ledger: &Ledger, now: Timestamp) -> Vec<Remains> {
    let mut jobs: BTreeMap<JobKey, Vec<&OwnPod>> = BTreeMap::new();
    for pod in ledger.own() {
        jobs.entry(pod.key()).or_default().push(pod);
    }
    let over = jobs.into_values().filter(|pods| is_over(pods, now));
    over.filter_map(|pods| {
        let first = pods.first()?;
        let kind =
            [RootKind::ConfigMap, RootKind::Pod].into_iter().find(|kind| kind.label() == first.root)?;
        let mut pods: Vec<_> = pods.iter().map(|pod| (pod.name.clone(), pod.uid.clone())).collect();
        pods.sort();
        Some(Remains {
            job: first.job.clone(),
            namespace: first.namespace.clone(),
            // A config map is called as its job is; a pod is not deleted, so that its name does not matter.
            root: Root { kind, name: first.job.clone(), uid: first.job_uid.clone() },
            pods,
        })
    })
    .collect()
}

/// Whether nobody will come back to these pods of a job, and nobody look at them any more.
fn is_over(pods: &[&OwnPod], now: Timestamp) -> bool {
    let since = |pod: &&OwnPod| match pod.is_finished() {
        // Of a pod whose node is gone nobody may have written down when it ended.
        true => Some(pod.ended.as_ref().and_then(|ended| ended.at).unwrap_or(pod.created)),
        false if pod.gated => pod.created.checked_add(STALE).ok(),
        false => None,
    };
    let Some(ends) = pods.iter().map(since).collect::<Option<Vec<_>>>() else { return false };
    let Some(last) = ends.into_iter().max() else { return false };
    let ttl = pods.iter().filter_map(|pod| pod.ttl).max().unwrap_or(0);
    let has_ended_well = |pod: &&&OwnPod| pod.ended.as_ref().is_some_and(|ended| ended.exit_code == Some(0));
    let chiefs = || pods.iter().filter(|pod| pod.is_chief);
    let failed = chiefs().filter(|pod| pod.is_finished()).count();
    let retries = pods.iter().map(|pod| pod.retries as usize).max().unwrap_or(0);
    let may_go_on = failed <= retries && chiefs().find(has_ended_well).is_none();
    let more = if may_go_on && retries > 0 { NEXT_ATTEMPT } else { SignedDuration::ZERO };
    now.duration_since(last) > SignedDuration::from_secs(i64::from(ttl)) + more
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;
    use crate::job::{Gang, examples, pod};

    /// The chief of a job with this root; `extra` is laid over it.
    fn chief(kind: RootKind, retries: u32, status: Value, extra: Value) -> Pod {
        let mut job = examples::job("mnist", 1);
        job.root.kind = kind;
        job.spec.retries = retries;
        let gang = Gang::new("mnist", 0, &[("node-1".to_owned(), 1)].into());
        let made = pod(&job, &gang, &gang.members[0], &examples::surroundings()).expect("a pod");
        let mut made = json!(made);
        made["metadata"]["uid"] = json!("pod-uid");
        made["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        made["spec"]["schedulingGates"] = json!([]);
        made["status"] = status;
        for (key, value) in extra.as_object().into_iter().flatten() {
            made["spec"][key] = value.clone();
        }
        serde_json::from_value(made).expect("a pod")
    }

    fn ended(code: i32) -> Value {
        let state = json!({"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:10:00Z"}});
        let train = json!({"name": "train", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        json!({"phase": phase, "containerStatuses": [train]})
    }

    /// When what is left of it goes.
    fn goes(pod: &Pod) -> Option<&'static str> {
        let ledger = Ledger::of([], [pod]);
        let times =
            ["2026-01-01T01:05:00Z", "2026-01-01T01:11:00Z", "2026-01-02T01:09:00Z", "2026-01-02T01:11:00Z"];
        times.into_iter().find(|time| !expired(&ledger, time.parse().expect("a time")).is_empty())
    }

    #[test]
    fn what_is_kept_goes_after_its_time_whatever_it_belongs_to() {
        for kind in [RootKind::ConfigMap, RootKind::Pod] {
            assert_eq!(goes(&chief(kind, 0, ended(0), json!({}))), Some("2026-01-01T01:11:00Z"));
            assert_eq!(goes(&chief(kind, 0, ended(1), json!({}))), Some("2026-01-01T01:11:00Z"));
        }
        // The controller sees to its own.
        assert_eq!(goes(&chief(RootKind::RondeJob, 0, ended(0), json!({}))), None);
    }

    #[test]
    fn jobs_of_one_uid_are_told_apart_by_name_and_namespace() {
        let over = chief(RootKind::Pod, 0, ended(0), json!({}));
        let mut runs = chief(RootKind::Pod, 0, json!({"phase": "Running"}), json!({}));
        runs.metadata.name = Some("other-chief".to_owned());
        let labels = runs.metadata.labels.get_or_insert_default();
        labels.insert(crate::job::names::JOB.to_owned(), "other".to_owned());
        let mut elsewhere = over.clone();
        elsewhere.metadata.namespace = Some("evil".to_owned());
        let ledger = Ledger::of([], [&over, &runs, &elsewhere]);
        let mut gone = expired(&ledger, "2026-01-01T01:11:00Z".parse().expect("a time"));
        gone.sort_by(|one, other| one.namespace.cmp(&other.namespace));
        let found: Vec<_> =
            gone.iter().map(|one| (one.namespace.as_str(), one.job.as_str(), one.pods.len())).collect();
        assert_eq!(found, [("default", "mnist", 1), ("evil", "mnist", 1)]);
    }

    #[test]
    fn nobody_knows_when_it_ended_so_its_age_counts() {
        let lost = json!({"phase": "Failed", "reason": "NodeLost"});
        assert_eq!(goes(&chief(RootKind::ConfigMap, 0, lost, json!({}))), Some("2026-01-01T01:05:00Z"));
    }

    #[test]
    fn a_claim_that_nobody_came_back_for_goes() {
        let gated = json!({"schedulingGates": [{"name": "ronde.dev/claim"}]});
        let pending = json!({"phase": "Pending"});
        assert_eq!(
            goes(&chief(RootKind::ConfigMap, 0, pending.clone(), gated)),
            Some("2026-01-01T01:05:00Z")
        );
        assert_eq!(goes(&chief(RootKind::ConfigMap, 0, pending, json!({}))), None);
    }

    #[test]
    fn a_job_that_may_try_again_is_given_a_day() {
        assert_eq!(goes(&chief(RootKind::ConfigMap, 1, ended(1), json!({}))), Some("2026-01-02T01:11:00Z"));
        assert_eq!(goes(&chief(RootKind::ConfigMap, 1, ended(0), json!({}))), Some("2026-01-01T01:11:00Z"));
    }
}
