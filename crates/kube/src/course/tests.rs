//! One state of a job at a time: what is observed, and what must be decided.
//!
//! A case begins with a job of 6 GPUs on nodes with 5, 3 and 2, whose pods are as `Set` says; what is special about it is
//! done to the pods as JSON. Pods that get no place are in `tests/elsewhere.rs`; what happens over time is in `simulation`.

mod elsewhere;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::job::{RootKind, examples, pod};

const CREATED: &str = "2026-01-01T00:00:00Z";

fn at(seconds: i64) -> Timestamp {
    CREATED.parse::<Timestamp>().expect("a time") + SignedDuration::from_secs(seconds)
}

fn nodes() -> Vec<Node> {
    [("node-1", 5), ("node-2", 3), ("node-3", 2)].map(|(name, gpus)| examples::node(name, gpus)).to_vec()
}

/// How far both pods of the set are.
#[derive(Clone, Copy, PartialEq)]
enum Set {
    Gated,
    Placed,
    Bound,
    Running,
}

/// The chief on node-3 with 1 GPU and the worker on node-1 with 5.
fn pods(job: &Job, set: Set) -> Vec<Value> {
    let claim = [("node-1".to_owned(), 5), ("node-3".to_owned(), 1)];
    made(job, &Gang::new(&job.name, 0, &claim.into()), set)
}

/// The pods of a set.
fn made(job: &Job, gang: &Gang, set: Set) -> Vec<Value> {
    let mut pods: Vec<Value> = Vec::new();
    for member in &gang.members {
        let mut made = json!(pod(job, gang, member, &examples::surroundings()).expect("a pod"));
        made["metadata"]["uid"] = json!(format!("uid-{}", member.pod));
        made["metadata"]["creationTimestamp"] = json!(CREATED);
        made["metadata"]["resourceVersion"] = json!("7");
        made["status"] = json!({"phase": "Pending"});
        if set != Set::Gated {
            made["spec"]["schedulingGates"] = json!([]);
            made["metadata"]["annotations"]["ronde.dev/placed"] = json!("2026-01-01T00:00:01Z");
        }
        if matches!(set, Set::Bound | Set::Running) {
            made["spec"]["nodeName"] = json!(member.node);
        }
        if set == Set::Running {
            made["status"] = json!({"phase": "Running", "containerStatuses": [container(json!({"running": {"startedAt": at(4)}}))]});
        }
        pods.push(made);
    }
    pods
}

fn container(state: Value) -> Value {
    json!({"name": "train", "image": "i", "imageID": "x", "ready": true, "restartCount": 0, "state": state})
}

fn ended(code: i32, reason: &str, second: i64) -> Value {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let state = json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": at(4), "finishedAt": at(second)}});
    json!({"phase": phase, "containerStatuses": [container(state)]})
}

/// The same with what it said last.
fn ended_saying(code: i32, reason: &str, second: i64, said: &str) -> Value {
    let mut status = ended(code, reason, second);
    status["containerStatuses"][0]["state"]["terminated"]["message"] = json!(said);
    status
}

struct Case {
    job: Job,
    status: JobStatus,
    nodes: Vec<Node>,
    pods: Vec<Value>,
    listed: bool,
    now: Timestamp,
}

impl Case {
    fn with(set: Set) -> Case {
        let job = examples::job("mnist", 6);
        let phase = match set {
            Set::Gated => Phase::Claimed,
            Set::Placed => Phase::Placing,
            Set::Bound => Phase::Scheduled,
            Set::Running => Phase::Running,
        };
        let status = JobStatus { phase, ..JobStatus::default() };
        Case { pods: pods(&job, set), job, status, nodes: nodes(), listed: false, now: at(5) }
    }

    fn nothing() -> Case {
        Case { pods: Vec::new(), status: JobStatus::default(), ..Case::with(Set::Gated) }
    }

    fn decide(&self) -> Decision {
        let pods: Vec<Pod> =
            self.pods.iter().map(|pod| serde_json::from_value(pod.clone()).expect("a pod")).collect();
        let ledger = Ledger::of(&self.nodes, &pods);
        let seen = Observed {
            job: &self.job,
            status: &self.status,
            ledger: &ledger,
            listed: self.listed,
            turn: Ok(()),
            now: self.now,
        };
        decide(&seen)
    }
}

/// Actions in a few letters each.
fn words(decision: &Decision) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Support { .. } => "support".to_owned(),
        Action::CreatePod { gang, member } => format!("create {}", gang.members[*member].pod),
        Action::List => "list".to_owned(),
        Action::Ungate { pod, .. } => format!("ungate {pod}"),
        Action::DeletePod { pod, .. } => format!("delete {pod}"),
        Action::EndPod { pod, .. } => format!("end {pod}"),
        Action::Sweep => "sweep".to_owned(),
    };
    decision.actions.iter().map(word).collect()
}

fn expect(case: &Case, actions: &[&str], phase: Phase, reason: &str) -> Decision {
    let decision = case.decide();
    let said = format!("{:?}: {}", decision.status.phase, decision.status.message);
    assert_eq!(words(&decision), actions, "{said}");
    assert_eq!((decision.status.phase, decision.status.reason.as_str()), (phase, reason), "{said}");
    decision
}

const BOTH_DELETED: [&str; 2] = ["delete mnist-chief", "delete mnist-worker-0"];

#[test]
fn gpus_are_claimed_by_pods_of_which_the_chief_comes_last() {
    let decision = expect(
        &Case::nothing(),
        &["create mnist-worker-0", "create mnist-chief", "list"],
        Phase::Claimed,
        "Claimed",
    );
    assert_eq!(decision.status.nodes, "node-1: 5, node-3: 1");
}

#[test]
fn a_job_waits_with_the_reason_for_gpus_for_its_turn_and_for_its_time() {
    let mut case = Case::nothing();
    case.job.spec = examples::spec(11);
    expect(&case, &[], Phase::Pending, "NeverEnough");
    case.job.spec = examples::spec(9);
    case.nodes[0].spec = serde_json::from_value(json!({"unschedulable": true})).expect("a spec");
    let decision = expect(&case, &[], Phase::Pending, "NotEnoughGpus");
    assert!(decision.status.message.contains("node-1 is cordoned"), "{}", decision.status.message);
    let mut case = Case::nothing();
    case.status.not_before = Some(Time(at(9)));
    case.status.reason = "Retrying".to_owned();
    let decision = expect(&case, &[], Phase::Pending, "Retrying");
    assert_eq!(decision.wake, Some(SignedDuration::from_secs(4)));
}

#[test]
fn a_node_that_the_templates_affinity_rules_out_is_not_planned_with() {
    let mut case = Case::nothing();
    case.job.spec = examples::spec(2);
    let zone = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]});
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone]}});
    case.job.spec.template = Some(json!({"spec": {"affinity": {"nodeAffinity": required}}}));
    let decision = expect(&case, &[], Phase::Pending, "NeverEnough");
    let message = &decision.status.message;
    assert!(message.contains("node-1 does not fit the node affinity zone in (b)"), "{message}");
    case.nodes[1].metadata.labels = Some([("zone".to_owned(), "b".to_owned())].into());
    assert_eq!(case.decide().status.nodes, "node-2: 2");
}

#[test]
fn a_set_is_completed_listed_and_let_go() {
    let mut case = Case::with(Set::Gated);
    let chief = case.pods.remove(0);
    expect(&case, &["create mnist-chief", "list"], Phase::Claimed, "Claimed");
    case.pods.insert(0, chief);
    expect(&case, &["list"], Phase::Claimed, "Claimed");
    case.listed = true;
    let all = ["support", "ungate mnist-chief", "ungate mnist-worker-0"];
    expect(&case, &all, Phase::Placing, "Placing");
    // Killed after the first was let go.
    case.pods[0] = pods(&case.job, Set::Placed)[0].clone();
    case.listed = false;
    expect(&case, &["ungate mnist-worker-0"], Phase::Placing, "Placing");
}

#[test]
fn a_claim_is_given_up_if_another_came_first_or_if_it_is_old() {
    let mut case = Case::with(Set::Gated);
    case.listed = true;
    let mut other = examples::job("other", 2);
    other.root.uid = "uid-other".to_owned();
    let mut first = pods(&other, Set::Gated).remove(1);
    first["metadata"]["creationTimestamp"] = json!(at(-1));
    case.pods.push(first);
    let decision = expect(&case, &BOTH_DELETED, Phase::Pending, "Yielded");
    assert!(decision.status.message.contains("node-1"), "{}", decision.status.message);
    assert_eq!((decision.status.yields, decision.status.attempt), (1, 1));
    // The same pod, created later or by a job that comes later, gives way, and that is waited for.
    for created in [at(1), at(0)] {
        case.pods[2]["metadata"]["creationTimestamp"] = json!(created);
        let decision = expect(&case, &[], Phase::Claimed, "Claimed");
        assert!(decision.wake.is_some());
    }
    // Unless the scheduler was let at it already.
    let mut safe = case.pods[2].clone();
    safe["spec"]["schedulingGates"] = json!([]);
    let gated = std::mem::replace(&mut case.pods[2], safe);
    expect(&case, &BOTH_DELETED, Phase::Pending, "Yielded");
    case.pods[2] = gated;
    case.pods[2]["metadata"]["deletionTimestamp"] = json!(at(5));
    assert_eq!(case.decide().status.phase, Phase::Placing);
    let mut case = Case::with(Set::Gated);
    case.now = at(60);
    expect(&case, &BOTH_DELETED, Phase::Pending, "Yielded");
}

#[test]
fn a_pod_in_anybody_elses_namespace_steers_no_job() {
    let mut case = Case::with(Set::Running);
    let mut fake = case.pods[0].clone();
    fake["metadata"]["namespace"] = json!("evil");
    fake["metadata"]["labels"]["ronde.dev/attempt"] = json!("99");
    case.pods.push(fake);
    expect(&case, &[], Phase::Running, "Running");
    case.pods[2]["metadata"]["labels"]["ronde.dev/attempt"] = json!("0");
    case.pods[2]["status"] = ended(0, "Completed", 20);
    expect(&case, &[], Phase::Running, "Running");
    // The same for a job of another name that is run from inside the same pod.
    case.pods[2]["metadata"]["namespace"] = json!("default");
    case.pods[2]["metadata"]["name"] = json!("other-chief");
    case.pods[2]["metadata"]["labels"]["ronde.dev/job"] = json!("other");
    expect(&case, &[], Phase::Running, "Running");
}

#[test]
fn of_two_plans_for_one_set_the_older_is_completed_and_the_other_deleted() {
    let mut case = Case::with(Set::Gated);
    let theirs = r#"{"resource":"nvidia.com/gpu","nodes":{"node-1":3,"node-2":3}}"#;
    case.pods[0]["metadata"]["annotations"]["ronde.dev/claim"] = json!(theirs);
    case.pods[0]["metadata"]["creationTimestamp"] = json!(at(1));
    case.listed = true;
    let actions = ["delete mnist-chief", "create mnist-chief", "list"];
    let decision = expect(&case, &actions, Phase::Claimed, "Claimed");
    assert_eq!(decision.status.nodes, "node-1: 5, node-3: 1");
    // What was let go counts, however old it is.
    case.pods[0]["spec"]["schedulingGates"] = json!([]);
    case.pods[0]["metadata"]["annotations"]["ronde.dev/placed"] = json!(at(2));
    let decision = case.decide();
    assert_eq!(words(&decision)[0], "delete mnist-worker-0");
    assert!(!words(&decision).contains(&"ungate mnist-worker-0".to_owned()), "{:?}", words(&decision));
}

#[test]
fn gates_of_others_are_waited_for_without_end() {
    let mut case = Case::with(Set::Placed);
    case.pods[1]["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/admission"}]);
    case.now = at(100_000);
    let decision = expect(&case, &[], Phase::Placing, "HeldBack");
    assert!(decision.status.message.contains("kueue"), "{}", decision.status.message);
    // When they are gone, the time for finding a place begins.
    case.status = decision.status;
    case.pods[1]["spec"]["schedulingGates"] = json!([]);
    expect(&case, &["ungate mnist-chief", "ungate mnist-worker-0"], Phase::Placing, "Placing");
}

#[test]
fn an_image_that_cannot_be_pulled_is_told_at_once_and_given_up_after_a_while() {
    let mut case = Case::with(Set::Bound);
    let starting = json!({"phase": "Pending", "containerStatuses": [container(json!({"waiting": {"reason": "ContainerCreating"}}))]});
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "no such host"}});
    let failing = json!({"phase": "Pending", "containerStatuses": [container(waiting)]});
    case.pods[0]["status"] = failing.clone();
    let decision = expect(&case, &[], Phase::Scheduled, "ImagePullBackOff");
    assert!(decision.status.message.contains("no such host"), "{}", decision.status.message);
    // A deadline for starting that is shorter says the same.
    case.job.spec.start_deadline_seconds = 20;
    case.now = at(30);
    let decision = expect(&case, &BOTH_DELETED, Phase::Failed, "StartDeadline");
    assert!(decision.status.message.contains("no such host"), "{}", decision.status.message);
    // What failed only once is no failure, however long after the pod got its place.
    case.job.spec.start_deadline_seconds = 600;
    case.now = at(100);
    case.status = expect(&case, &[], Phase::Scheduled, "ImagePullBackOff").status;
    assert_eq!(case.status.stuck_since, Some(Time(at(100))));
    case.now = at(140);
    case.pods[0]["status"] = starting;
    case.status = expect(&case, &[], Phase::Scheduled, "Starting").status;
    assert_eq!(case.status.stuck_since, None);
    case.now = at(150);
    case.pods[0]["status"] = failing;
    case.status = expect(&case, &[], Phase::Scheduled, "ImagePullBackOff").status;
    case.now = at(194);
    expect(&case, &[], Phase::Scheduled, "ImagePullBackOff");
    case.now = at(195);
    expect(&case, &BOTH_DELETED, Phase::Failed, "ImagePullBackOff");
    // Another attempt may find it.
    case.job.spec.retries = 3;
    expect(&case, &BOTH_DELETED, Phase::Pending, "Retrying");
}

#[test]
fn the_chief_decides_and_stays_for_its_logs() {
    let mut case = Case::with(Set::Running);
    expect(&case, &[], Phase::Running, "Running");
    case.pods[0]["status"] = ended(0, "Completed", 20);
    case.now = at(21);
    let decision = expect(&case, &["delete mnist-worker-0"], Phase::Succeeded, "Succeeded");
    assert_eq!(decision.wake, Some(SignedDuration::from_secs(3599)));
    case.status = decision.status;
    case.now = at(3621);
    expect(&case, &["delete mnist-chief", "delete mnist-worker-0", "sweep"], Phase::Succeeded, "Succeeded");
    // A command's job has no status that is kept, so it must not outlive its chief.
    case.job.root.kind = RootKind::ConfigMap;
    expect(&case, &["sweep", "delete mnist-chief", "delete mnist-worker-0"], Phase::Succeeded, "Succeeded");
    // Once is enough.
    case.pods.clear();
    case.status.swept = true;
    expect(&case, &[], Phase::Succeeded, "Succeeded");
}

#[test]
fn a_container_that_does_not_end_keeps_neither_the_result_nor_the_gpus() {
    // The next attempt is made beside it.
    let about_it = |case: &Case| -> Vec<String> {
        words(&case.decide()).into_iter().filter(|word| word.ends_with(" mnist-chief")).collect()
    };
    for (code, retries, phase) in [(0, 0, Phase::Succeeded), (7, 0, Phase::Failed), (7, 1, Phase::Pending)] {
        let mut case = Case::with(Set::Running);
        case.job.spec.retries = retries;
        case.pods.truncate(1);
        case.pods[0]["status"] = ended(code, "Completed", 20);
        case.pods[0]["status"]["phase"] = json!("Running");
        case.now = at(21);
        let decision = case.decide();
        assert_eq!((decision.status.phase, words(&decision)), (phase, vec![]));
        assert_eq!(decision.wake, Some(SignedDuration::from_secs(4)));
        // Usually the pod ends now. If not, it is ended, and keeps its logs.
        case.status = decision.status;
        case.now = at(25);
        assert_eq!(about_it(&case), ["end mnist-chief"]);
        case.pods[0]["metadata"]["annotations"]["ronde.dev/ended"] = json!("done");
        assert_eq!(about_it(&case), Vec::<String>::new());
        // A kubelet that does not do it in time leaves no other way; the template may give it more.
        case.now = at(120);
        assert_eq!(about_it(&case), ["delete mnist-chief"]);
        case.job.spec.template = Some(json!({"spec": {"terminationGracePeriodSeconds": 600}}));
        assert_eq!(about_it(&case), Vec::<String>::new());
        // To a manager that knows nothing it is the training that counts.
        case.status = JobStatus::default();
        case.pods[0]["status"] = ended(code, "Completed", 20);
        case.pods[0]["status"]["phase"] = json!("Failed");
        case.pods[0]["status"]["reason"] = json!("DeadlineExceeded");
        assert_eq!(case.decide().status.phase, phase);
    }
}

#[test]
fn a_failure_ends_the_job_with_the_status_of_the_training() {
    let mut case = Case::with(Set::Running);
    case.pods[0]["status"] = ended(7, "Error", 20);
    case.now = at(21);
    let decision = expect(&case, &["delete mnist-worker-0"], Phase::Failed, "Error");
    assert_eq!(
        (decision.status.exit_code, decision.status.failed_pod.as_deref()),
        (Some(7), Some("mnist-chief"))
    );
}

#[test]
fn of_a_job_that_ended_well_after_all_no_pod_has_failed() {
    let mut case = Case::with(Set::Running);
    (case.status.failures, case.status.failed_pod) = (1, Some("mnist-chief".to_owned()));
    case.pods[0]["status"] = ended(0, "Completed", 20);
    case.now = at(21);
    assert_eq!(case.decide().status.failed_pod, None);
}

#[test]
fn the_pod_that_failed_first_is_the_one_that_is_told_of() {
    let mut case = Case::with(Set::Running);
    case.pods[1]["status"] = ended(137, "OOMKilled", 18);
    case.now = at(19);
    // The chief is given time to say what it knows.
    expect(&case, &[], Phase::Running, "Ending");
    case.pods[0]["status"] = ended(1, "Error", 20);
    let decision = case.decide();
    assert_eq!(decision.status.failed_pod.as_deref(), Some("mnist-worker-0"));
    assert!(decision.status.message.contains("out of memory"), "{}", decision.status.message);
    assert_eq!(words(&decision), Vec::<String>::new(), "both are kept for their logs");
}

#[test]
fn an_image_without_what_it_was_said_to_have_is_told_of_with_the_fix() {
    let mut case = Case::with(Set::Running);
    let said = "failed to create containerd task: exec: \"ronde\": executable file not found in $PATH";
    case.pods[0]["status"] = ended_saying(128, "StartError", 5, said);
    case.now = at(6);
    let decision = expect(&case, &["delete mnist-worker-0"], Phase::Failed, "StartError");
    assert!(decision.status.message.ends_with("without imageHasRonde (--image-has-ronde) it is brought"));
}

#[test]
fn the_chiefs_last_word_on_a_failure_is_told() {
    let mut case = Case::with(Set::Running);
    let output = "[0] error: of a rank\nerror: rank 4 on mnist-worker-0 failed first: exit status 5\n  others stopped\n";
    case.pods[0]["status"] = ended_saying(5, "Error", 20, output);
    case.now = at(21);
    assert_eq!(
        case.decide().status.message,
        "mnist-chief on node-3 ended with status 5: rank 4 on mnist-worker-0 failed first: exit status 5"
    );
}

#[test]
fn a_pod_that_is_taken_away_ends_the_attempt_while_the_reason_is_known() {
    let taken = |mut case: Case| {
        let why = json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "evicting"}]);
        case.pods[1]["status"]["conditions"] = why;
        case.pods[1]["metadata"]["deletionTimestamp"] = json!(at(18));
        case
    };
    let said = "mnist-worker-0 was taken off node-1 (EvictionByEvictionAPI): evicting";
    let mut case = taken(Case::with(Set::Running));
    let decision = expect(&case, &["end mnist-chief"], Phase::Failed, "EvictionByEvictionAPI");
    assert_eq!(decision.status.message, said);
    case.job.spec.retries = 1;
    let decision = expect(&case, &["delete mnist-chief"], Phase::Pending, "Retrying");
    assert_eq!(decision.status.avoid[0].node, "node-1");
    // The chief may have noticed before anybody else, and the worker have said something itself.
    let mut case = Case::with(Set::Running);
    case.pods[0]["status"] = ended(1, "Error", 20);
    case.pods[1]["status"] = ended_saying(143, "Error", 19, "no launcher yet");
    assert_eq!(taken(case).decide().status.message, said);
}

#[test]
fn another_attempt_is_made_if_the_job_allows_it() {
    let mut case = Case::with(Set::Running);
    case.job.spec.retries = 1;
    case.pods[0]["status"] = ended(7, "Error", 20);
    case.now = at(21);
    let decision = expect(&case, &["delete mnist-worker-0"], Phase::Pending, "Retrying");
    assert_eq!((decision.status.attempt, decision.status.failures), (1, 1));
    assert_eq!(decision.status.not_before, Some(Time(at(25))), "five seconds after its end");
    // A manager that knows nothing counts the chiefs that failed.
    case.status = JobStatus::default();
    for pod in &mut case.pods {
        let name = format!("{}-r1", pod["metadata"]["name"].as_str().expect("a name"));
        let mut again = pod.clone();
        again["metadata"]["name"] = json!(name);
        again["metadata"]["labels"]["ronde.dev/attempt"] = json!("1");
        *pod = if pod["metadata"]["labels"]["ronde.dev/role"] == "chief" { pod.clone() } else { again };
    }
    let mut second = case.pods[0].clone();
    second["metadata"]["name"] = json!("mnist-chief-r1");
    second["metadata"]["labels"]["ronde.dev/attempt"] = json!("1");
    case.pods.push(second);
    let decision = case.decide();
    assert_eq!((decision.status.phase, decision.status.failures), (Phase::Failed, 2));
}

#[test]
fn a_lost_node_and_a_deleted_pod_end_the_attempt_at_once() {
    let mut case = Case::with(Set::Running);
    case.job.spec.retries = 1;
    let ready = |case: &mut Case, word: &str| {
        let conditions = case.nodes[0].status.as_mut().and_then(|status| status.conditions.as_mut());
        conditions.expect("conditions")[0].status = word.to_owned();
    };
    // A kubelet that has just started says so, while its pods run on.
    ready(&mut case, "False");
    expect(&case, &[], Phase::Running, "Running");
    ready(&mut case, "Unknown");
    let decision = expect(&case, &BOTH_DELETED, Phase::Pending, "Retrying");
    assert_eq!(decision.status.avoid[0].node, "node-1");
    let mut case = Case::with(Set::Running);
    case.pods.remove(1);
    let decision = expect(&case, &["end mnist-chief"], Phase::Failed, "PodDeleted");
    assert!(decision.status.message.contains("mnist-worker-0"), "{}", decision.status.message);
    // Before anything ran nothing has failed: another set is made after a pause.
    let mut case = Case::with(Set::Bound);
    case.pods.remove(1);
    let decision = expect(&case, &["delete mnist-chief"], Phase::Pending, "PodDeleted");
    assert_eq!((decision.status.failures, decision.status.attempt), (0, 1));
    assert!(decision.status.not_before.is_some());
}

#[test]
fn deadline_suspension_and_deletion_give_everything_back() {
    let mut case = Case::with(Set::Running);
    case.job.spec.deadline_seconds = Some(10);
    assert_eq!(case.decide().wake, Some(SignedDuration::from_secs(9)));
    case.now = at(14);
    // The chief's logs are worth keeping.
    let decision =
        expect(&case, &["delete mnist-worker-0", "end mnist-chief"], Phase::Failed, "DeadlineExceeded");
    // A manager that knows nothing of it sees what was meant, and makes no other attempt.
    case.job.spec.retries = 3;
    case.status = JobStatus::default();
    case.pods.truncate(1);
    case.pods[0]["metadata"]["annotations"]["ronde.dev/ended"] = json!(decision.status.reason);
    case.pods[0]["status"] = ended(137, "Error", 15);
    case.pods[0]["status"]["reason"] = json!("DeadlineExceeded");
    let decision = expect(&case, &[], Phase::Failed, "DeadlineExceeded");
    assert!(decision.status.message.contains("deadline"), "{}", decision.status.message);
    let mut case = Case::with(Set::Running);
    case.job.spec.suspend = true;
    expect(&case, &BOTH_DELETED, Phase::Suspended, "Suspended");
    let mut case = Case::with(Set::Running);
    case.job.deleting = true;
    expect(&case, &BOTH_DELETED, Phase::Running, "");
}

#[test]
fn a_job_that_makes_no_sense_fails_with_all_that_is_wrong() {
    let mut case = Case::nothing();
    case.job.spec.image = String::new();
    let decision = expect(&case, &[], Phase::Failed, "Invalid");
    assert!(decision.status.message.contains("image"), "{}", decision.status.message);
}

#[test]
fn the_wait_for_a_better_placement_counts_from_when_waiting_began() {
    let mut case = Case::nothing();
    case.job.spec = examples::spec(5);
    case.job.spec.wait_for_better_seconds = 60;
    // Somebody has one of node-1's five.
    case.pods = vec![json!({
        "metadata": {"name": "other", "namespace": "team"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Running"},
    })];
    let decision = expect(&case, &[], Phase::Pending, "WaitsForBetter");
    assert_eq!(decision.status.waiting_since, Some(Time(case.now)));
    // It waited for any GPUs at all before, and claimed in vain in between.
    case.status = JobStatus { waiting_since: Some(Time(at(0))), ..JobStatus::default() };
    case.now = at(59);
    expect(&case, &[], Phase::Pending, "WaitsForBetter");
    case.now = at(61);
    let decision = case.decide();
    assert_eq!(decision.status.phase, Phase::Claimed);
    assert_eq!(decision.status.waiting_since, Some(Time(at(0))));
}

#[test]
fn a_job_that_runs_or_is_suspended_does_not_wait() {
    let mut case = Case::with(Set::Running);
    case.status.waiting_since = Some(Time(at(0)));
    assert_eq!(case.decide().status.waiting_since, None);
    case.job.spec.suspend = true;
    assert_eq!(case.decide().status.waiting_since, None);
}
