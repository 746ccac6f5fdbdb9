//! What is left of jobs of `ronde kube run`, and when it goes.
//!
//! Such a job has no record in the cluster but its pods. Whoever runs a job in the same namespace next, or the controller,
//! finds them and deletes all that belongs to a job whose time is over: the finished ones that were kept for their logs
//! long enough, and those whose command was killed before their pods were let at the scheduler.
//!
//! Pods that were let at it and have not started in time go as well, and hold GPUs until then: Kubernetes itself ends no
//! pod that does not start. Its own `activeDeadlineSeconds` could not be taken back once the training has begun.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::act::Hands;
use crate::cluster::{JobKey, Ledger, OwnPod, STALE};
use crate::job::{Root, RootKind};
use crate::view::View;

/// How long a job that may make another attempt is waited for: it may wait for GPUs as long.
const NEXT_ATTEMPT: SignedDuration = SignedDuration::from_hours(24);
/// How long pods that have not started in time are left to the command, which gives them up itself if it is there.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);
/// How long to wait before trying again to delete the same.
const AGAIN: Duration = Duration::from_secs(30);

/// What is to go of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Remains {
    job: String,
    namespace: String,
    root: Root,
    /// Name and uid of each pod.
    pods: Vec<(String, String)>,
    /// Whether the job goes with them, and not only the pods that keep GPUs for nothing.
    all: bool,
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
            RootKind::ConfigMap | RootKind::RondeJob if one.all => Ok(()),
            _ => hands.delete_pods(&one.namespace, &one.pods).await,
        };
        if are_gone.is_ok() && one.all {
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
    jobs.into_values().filter_map(|pods| what_goes(&pods, now)).collect()
}

/// What is to go of the job that has these pods, if anything is.
fn what_goes(pods: &[&OwnPod], now: Timestamp) -> Option<Remains> {
    let first = pods.first()?;
    let kind = [RootKind::ConfigMap, RootKind::Pod].into_iter().find(|kind| kind.label() == first.root)?;
    // As whoever manages it counts: from when the last of them was let go.
    let placed = pods.iter().filter_map(|pod| pod.placed).max();
    let (stuck, others): (Vec<&OwnPod>, Vec<&OwnPod>) =
        pods.iter().copied().partition(|pod| placed.is_some_and(|placed| is_stuck(pod, placed, now)));
    // What has logs is kept for its time.
    let all = others.is_empty() || is_over(&others, now);
    let going = if all { pods } else { &stuck };
    let mut pods: Vec<_> = going.iter().map(|pod| (pod.name.clone(), pod.uid.clone())).collect();
    pods.sort();
    (!pods.is_empty()).then(|| Remains {
        job: first.job.clone(),
        namespace: first.namespace.clone(),
        // A config map is called as its job is; a pod is not deleted, so that its name does not matter.
        root: Root { kind, name: first.job.clone(), uid: first.job_uid.clone() },
        pods,
        all,
    })
}

/// Whether a pod has not started long after it should have. One that a queue system holds back has its time before it.
fn is_stuck(pod: &OwnPod, placed: Timestamp, now: Timestamp) -> bool {
    let is_let_go = pod.placed.is_some() && !pod.gated && pod.foreign_gate.is_none();
    let has_come_to_something = pod.started.is_some() || pod.is_finished() || pod.terminating;
    let is_late = |limit| now.duration_since(placed) > SignedDuration::from_secs(i64::from(limit)) + MARGIN;
    is_let_go && !has_come_to_something && pod.start_deadline.is_some_and(is_late)
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
    use crate::clock::Clock;
    use crate::fake::Fake;
    use crate::job::{Gang, examples, names, pod};

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

    /// The chief, let go a minute after it was made.
    fn placed(kind: RootKind, status: Value, extra: Value) -> Pod {
        let mut pod = chief(kind, 0, status, extra);
        let notes = pod.metadata.annotations.get_or_insert_default();
        notes.insert(names::PLACED.to_owned(), "2026-01-01T00:01:00Z".to_owned());
        pod
    }

    /// Its only worker.
    fn worker_of(chief: &Pod, status: Value) -> Pod {
        let mut pod = chief.clone();
        pod.metadata.name = Some("mnist-worker-0".to_owned());
        pod.metadata.labels.get_or_insert_default().insert(names::ROLE.to_owned(), "worker".to_owned());
        pod.status = serde_json::from_value(status).expect("a status");
        pod
    }

    /// The pods that go at this time, and whether the job goes with them.
    fn gone_at(time: &str, pods: &[Pod]) -> Option<(Vec<String>, bool)> {
        let found = expired(&Ledger::of([], pods), time.parse().expect("a time")).pop()?;
        Some((found.pods.into_iter().map(|(name, _)| name).collect(), found.all))
    }

    // Ten minutes to start in, and one that is left to the command.
    const IN_TIME: &str = "2026-01-01T00:11:59Z";
    const TOO_LATE: &str = "2026-01-01T00:12:01Z";

    #[test]
    fn a_pod_that_never_starts_goes_with_its_job_soon_after_its_start_deadline() {
        let pending = json!({"phase": "Pending"});
        for kind in [RootKind::ConfigMap, RootKind::Pod] {
            let stuck = [placed(kind, pending.clone(), json!({"nodeName": "node-1"}))];
            assert_eq!(gone_at(IN_TIME, &stuck), None);
            assert_eq!(gone_at(TOO_LATE, &stuck), Some((vec!["mnist-chief".to_owned()], true)));
        }
        let stuck = placed(RootKind::RondeJob, pending.clone(), json!({}));
        assert_eq!(gone_at(TOO_LATE, &[stuck]), None, "the controller sees to its own");
        let gate = json!({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]});
        let held = placed(RootKind::ConfigMap, pending, gate);
        assert_eq!(gone_at(TOO_LATE, &[held]), None, "its time has not begun");
        let state = json!({"running": {"startedAt": "2026-01-01T00:02:00Z"}});
        let train = json!({"name": "train", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state});
        let runs = json!({"phase": "Running", "containerStatuses": [train]});
        assert_eq!(gone_at(TOO_LATE, &[placed(RootKind::ConfigMap, runs, json!({}))]), None);
    }

    #[tokio::test]
    async fn of_a_job_with_logs_only_what_never_started_goes() {
        let chief = placed(RootKind::ConfigMap, ended(1), json!({}));
        let pods = [worker_of(&chief, json!({"phase": "Pending"})), chief];
        assert_eq!(gone_at(IN_TIME, &pods), None);
        assert_eq!(gone_at(TOO_LATE, &pods), Some((vec!["mnist-worker-0".to_owned()], false)));
        let both = vec!["mnist-chief".to_owned(), "mnist-worker-0".to_owned()];
        assert_eq!(gone_at("2026-01-01T01:11:00Z", &pods), Some((both, true)));

        let fake = Fake::default();
        let clear = async |pods: &[Pod]| {
            let hands = Hands::new(fake.client(), Clock::default(), examples::surroundings());
            clear_away(&hands, &View::still(Ledger::of([], pods)), Some("default")).await;
        };
        let now = Timestamp::now().to_string();
        fake.put(
            "/api/v1/namespaces/default/configmaps/mnist",
            json!({"metadata": {"name": "mnist", "uid": "uid-mnist"}}),
        );
        let mut chief = json!(pods[1]);
        chief["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = json!(now);
        let pods = [pods[0].clone(), serde_json::from_value(chief).expect("a pod")];
        for pod in &pods {
            let name = pod.metadata.name.as_deref().expect("a name");
            fake.put(&format!("/api/v1/namespaces/default/pods/{name}"), json!(pod));
        }
        clear(&pods).await;
        assert_eq!((fake.names("pods"), fake.names("configmaps").len()), (vec!["mnist-chief".to_owned()], 1));
        // Of one whose pods have nothing to show all goes, by its root.
        clear(&pods[..1]).await;
        assert!(fake.names("configmaps").is_empty());
    }

    #[test]
    fn a_job_that_may_try_again_is_given_a_day() {
        assert_eq!(goes(&chief(RootKind::ConfigMap, 1, ended(1), json!({}))), Some("2026-01-02T01:11:00Z"));
        assert_eq!(goes(&chief(RootKind::ConfigMap, 1, ended(0), json!({}))), Some("2026-01-01T01:11:00Z"));
    }
}
