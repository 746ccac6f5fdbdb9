//! Clusters as manifests in, free GPUs out.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::job::examples;
use crate::job::{Gang, names, pod};

const NOW: &str = "2026-01-01T00:01:00Z";

fn now() -> Timestamp {
    NOW.parse().expect("a time")
}

fn node(name: &str, gpus: u32) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "status": {
            "allocatable": {"nvidia.com/gpu": gpus.to_string(), "cpu": "32", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }))
    .expect("a node")
}

/// A pod of somebody else's; `extra` is laid over it.
fn stranger(name: &str, node: Option<&str>, gpus: u32, extra: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": gpus.to_string(), "cpu": "2", "memory": "1Gi"}}}],
        },
        "status": {"phase": "Running"},
    });
    for (path, value) in extra.as_object().expect("an object") {
        let (parent, key) = path.rsplit_once('/').expect("a path");
        pod.pointer_mut(parent).expect("a parent")[key] = value.clone();
    }
    serde_json::from_value(pod).expect("a pod")
}

/// A pod of one of our sets, as created.
fn ours(job: &str, claim: &[(&str, u32)], member: usize, created: &str, version: u64) -> Pod {
    let mut job = examples::job(job, 1);
    job.root.uid = format!("uid-{}", job.name);
    let claim = claim.iter().map(|(node, gpus)| ((*node).to_owned(), *gpus)).collect();
    let gang = Gang::new(&job.name, 0, &claim);
    let mut pod = pod(&job, &gang, &gang.members[member], &examples::surroundings()).expect("a pod");
    pod.metadata.creation_timestamp = Some(Time(created.parse().expect("a time")));
    pod.metadata.resource_version = Some(version.to_string());
    pod.metadata.uid = Some(format!("{}-{member}", job.name));
    pod
}

/// What the pods of this job are known by, and its first set.
fn key(job: &str) -> JobKey {
    examples::job(job, 1).key()
}

fn first_set(job: &str) -> GangKey {
    GangKey { job: key(job), attempt: 0 }
}

fn free(ledger: &Ledger, claims: Claims<'_>) -> Vec<u32> {
    let snapshot = ledger.snapshot(now(), claims).expect("a snapshot");
    snapshot.nodes.iter().map(|node| node.gpus["nvidia.com/gpu"].free).collect()
}

#[test]
fn pods_are_charged_to_the_node_they_are_on_or_meant_for_until_they_finish() {
    let cases = [
        ("a running pod", stranger("p", Some("n"), 3, json!({})), 5),
        ("a pending pod that is bound", stranger("p", Some("n"), 3, json!({"/status/phase": "Pending"})), 5),
        ("a finished pod", stranger("p", Some("n"), 3, json!({"/status/phase": "Succeeded"})), 8),
        ("a failed pod", stranger("p", Some("n"), 3, json!({"/status/phase": "Failed"})), 8),
        (
            "a pod that is terminating",
            stranger("p", Some("n"), 3, json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:30Z"})),
            5,
        ),
        ("an unbound pod", stranger("p", None, 3, json!({})), 8),
        (
            "an unbound pod that is nominated",
            stranger("p", None, 3, json!({"/status/nominatedNodeName": "n"})),
            5,
        ),
        ("a pod on another node", stranger("p", Some("other"), 3, json!({})), 8),
        ("more than there are", stranger("p", Some("n"), 9, json!({})), 0),
    ];
    for (what, pod, expected) in cases {
        let ledger = Ledger::of([&node("n", 8)], [&pod]);
        assert_eq!(free(&ledger, Claims::All), [expected], "{what}");
    }
}

#[test]
fn cpus_memory_and_places_are_counted_too_and_holders_are_named() {
    let ledger = Ledger::of([&node("n", 8)], [&stranger("p", Some("n"), 3, json!({}))]);
    let snapshot = ledger.free(now()).expect("a snapshot");
    let node = &snapshot.nodes[0];
    assert_eq!((node.free_cpu_milli, node.free_memory, node.free_pods), (30_000, 63 << 30, 109));
    assert_eq!((node.holders[0].name.as_str(), node.holders[0].gpus), ("pod team/p", 3));
    assert!(node.ready && !node.cordoned);
}

#[test]
fn a_set_counts_as_a_whole_from_its_first_pod_on() {
    let claim = [("a", 5), ("b", 1)];
    let nodes = [node("a", 8), node("b", 8)];
    let first = ours("mnist", &claim, 1, "2026-01-01T00:00:50Z", 7);
    let ledger = Ledger::of(&nodes, [&first]);
    assert_eq!(free(&ledger, Claims::All), [3, 7]);
    let second = ours("mnist", &claim, 0, "2026-01-01T00:00:51Z", 8);
    let ledger = Ledger::of(&nodes, [&first, &second]);
    assert_eq!(free(&ledger, Claims::All), [3, 7]);
}

#[test]
fn what_the_pods_of_a_claim_take_besides_gpus_counts_too() {
    let claim = [("a", 5), ("b", 1)];
    let pods = [0, 1].map(|member| ours("mnist", &claim, member, "2026-01-01T00:00:50Z", 7));
    let ledger = Ledger::of(&[node("a", 8), node("b", 8)], &pods);
    // What brings our program into a pod asks for a tenth of a CPU and 128 MiB.
    for node in ledger.free(now()).expect("a snapshot").nodes {
        assert_eq!(
            (node.free_cpu_milli, node.free_memory, node.free_pods),
            (31_900, (64 << 30) - (128 << 20), 109)
        );
    }
}

#[test]
fn pods_that_the_scheduler_was_let_at_count_one_by_one_and_never_get_stale() {
    let claim = [("a", 5), ("b", 1)];
    let mut pods = [0, 1].map(|member| ours("mnist", &claim, member, "2026-01-01T00:00:00Z", 7));
    pods[1].spec.as_mut().expect("a spec").scheduling_gates = None;
    let ledger = Ledger::of(&[node("a", 8), node("b", 8)], &pods);
    assert_eq!(free(&ledger, Claims::All), [3, 7]);
    let later = |pods: &[Pod]| -> Vec<u32> {
        let ledger = Ledger::of(&[node("a", 8), node("b", 8)], pods);
        let time = "2026-01-01T00:02:30Z".parse().expect("a time");
        let snapshot = ledger.snapshot(time, Claims::All).expect("a snapshot");
        snapshot.nodes.iter().map(|node| node.gpus["nvidia.com/gpu"].free).collect()
    };
    // Its manager may come back and let the other go, too; when the first has ended, nobody will.
    assert_eq!(later(&pods), [3, 7]);
    pods[1].status.get_or_insert_default().phase = Some("Failed".to_owned());
    assert_eq!(later(&pods), [8, 8]);
}

fn list(pods: &[Pod], version: u64) -> OwnPods {
    let mut list = OwnPods { version, ..OwnPods::default() };
    list.add(pods);
    list
}

#[test]
fn what_is_gone_does_not_come_back_and_what_is_new_does_not_go() {
    let claim = [("a", 5)];
    let nodes = [node("a", 8)];
    let old = ours("old", &claim, 0, "2026-01-01T00:00:50Z", 7);
    let mut ledger = Ledger::of(&nodes, [&old]);
    // A list is on its way while the watch tells that a pod is gone and another has come.
    let listed = [old.clone()];
    ledger.forget_pod(&old);
    ledger.note_pod(&ours("new", &claim, 0, "2026-01-01T00:00:51Z", 9));
    ledger.replace_own(list(&listed, 8));
    let names: Vec<_> = ledger.own().map(|own| own.job.as_str()).collect();
    assert_eq!(names, ["new"]);
    // The answer to a request comes after the watch told of the deletion.
    ledger.note_pod(&old);
    assert!(ledger.pods_of(&key("old")).is_empty());
    // What the next list does not have is gone.
    ledger.replace_own(list(&[], 10));
    assert_eq!(ledger.own().count(), 0);
}

#[test]
fn only_sets_that_came_first_count_against_a_claim() {
    let nodes = [node("a", 8)];
    let pods = [
        // Of those that came within the same second the job's uid decides, whatever was written when.
        ours("second", &[("a", 3)], 0, "2026-01-01T00:00:50Z", 10),
        ours("first", &[("a", 2)], 0, "2026-01-01T00:00:50Z", 20),
        ours("third", &[("a", 4)], 0, "2026-01-01T00:00:51Z", 5),
    ];
    let ledger = Ledger::of(&nodes, &pods);
    assert_eq!(free(&ledger, Claims::All), [0]);
    for (job, expected) in [("first", 8), ("second", 6), ("third", 3)] {
        let ticket = ledger.pods_of(&key(job))[0].ticket();
        assert_eq!(free(&ledger, Claims::Before(&ticket, &first_set(job))), [expected], "{job}");
    }
    for (job, expected) in [("first", 1), ("second", 2), ("third", 3)] {
        assert_eq!(free(&ledger, Claims::Others(&first_set(job))), [expected], "{job}");
    }
    assert_eq!(free(&ledger, Claims::Nobody), [8]);
}

#[test]
fn a_pod_that_only_says_to_be_a_jobs_is_a_claim_of_its_own() {
    let nodes = [node("a", 8)];
    let real = ours("mnist", &[("a", 3)], 0, NOW, 7);
    let mut elsewhere = ours("mnist", &[("a", 2)], 0, NOW, 8);
    elsewhere.metadata.namespace = Some("evil".to_owned());
    elsewhere.metadata.labels.get_or_insert_default().insert(names::ATTEMPT.to_owned(), "99".to_owned());
    // Both are run from inside one pod, whose uid they have.
    let mut sibling = ours("other", &[("a", 1)], 0, NOW, 9);
    sibling.metadata.labels.get_or_insert_default().insert(names::JOB_UID.to_owned(), "uid-mnist".to_owned());
    let mut ledger = Ledger::of(&nodes, [&real, &elsewhere, &sibling]);
    let pods = ledger.pods_of(&key("mnist"));
    assert_eq!(pods.iter().map(|own| own.attempt).collect::<Vec<_>>(), [0]);
    // Each counts, for the others too, and of two that came at once one is first.
    assert_eq!(free(&ledger, Claims::All), [2]);
    assert_eq!(free(&ledger, Claims::Others(&first_set("mnist"))), [5]);
    let tickets: BTreeSet<Ticket> = ledger.own().map(OwnPod::ticket).collect();
    assert_eq!(tickets.len(), 3);
    // What the others do is nothing that the job has done.
    ledger.forget_pod(&real);
    assert!(!ledger.claims(&key("mnist")) && ledger.is_past(&key("mnist")));
    assert_eq!(free(&ledger, Claims::All), [5]);
}

#[test]
fn what_was_missed_while_nobody_watched_is_made_up_for() {
    let mut ledger = Ledger::of([&node("a", 8), &node("b", 4)], [&stranger("p", Some("a"), 3, json!({}))]);
    ledger.keep_pods(|(_, name)| name != "p");
    ledger.keep_nodes(|name| name == "a");
    assert_eq!(free(&ledger, Claims::All), [8]);
    assert!(!ledger.is_lost("a") && ledger.is_lost("b"));
    ledger.note_pod(&stranger("p", Some("a"), 3, json!({})));
    ledger.note_pod(&stranger("p", Some("a"), 3, json!({"/status/phase": "Failed"})));
    assert_eq!(free(&ledger, Claims::All), [8]);
}

#[test]
fn shared_and_uncounted_gpus_are_pointed_out() {
    let labelled = |name: &str, gpus: u32, labels: Value| {
        let mut node = node(name, gpus);
        node.metadata.labels = serde_json::from_value(labels).expect("labels");
        node
    };
    let nodes = [
        labelled("dra", 0, json!({"nvidia.com/gpu.count": "8"})),
        labelled("plain", 8, json!({"nvidia.com/gpu.count": "8"})),
        labelled(
            "shared",
            16,
            json!({"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.product": "Tesla-T4-SHARED"}),
        ),
    ];
    let ledger = Ledger::of(&nodes, []);
    let remarks = ledger.remarks();
    assert_eq!(remarks.not_counted, [("dra".to_owned(), 8)]);
    assert_eq!(remarks.shared, [("shared".to_owned(), 4)]);
    let snapshot = ledger.free(now()).expect("a snapshot");
    assert_eq!(snapshot.nodes[2].gpus["nvidia.com/gpu"].replicas, 4);
    assert_eq!(ledger.size("nvidia.com/gpu"), (3, 24));
}

#[test]
fn a_kubelet_that_says_it_is_not_ready_is_heard_of() {
    let with = |status: &str, deleted: bool| {
        let mut node = node("n", 8);
        node.metadata.deletion_timestamp = deleted.then(|| Time(now()));
        node.status.as_mut().and_then(|status| status.conditions.as_mut()).expect("conditions")[0].status =
            status.to_owned();
        let ledger = Ledger::of([&node], []);
        let is_ready = ledger.free(now()).expect("a snapshot").nodes[0].ready;
        (is_ready, ledger.is_lost("n"))
    };
    assert_eq!(with("True", false), (true, false));
    assert_eq!(with("False", false), (false, false), "its kubelet starts again");
    assert_eq!(with("True", true), (false, false), "it is being drained");
    assert_eq!(with("Unknown", false), (false, true));
    assert!(Ledger::default().is_lost("n"), "it was deleted");
}

#[test]
fn resources_that_are_amounts_are_not_in_the_way() {
    let mut node = node("n", 8);
    let allocatable = node.status.as_mut().and_then(|status| status.allocatable.as_mut()).expect("resources");
    allocatable.insert("sgx.intel.com/epc".to_owned(), Quantity("98041856".to_owned()));
    let requests = json!({"nvidia.com/gpu": "1", "sgx.intel.com/epc": "9804185600000"});
    let holds =
        |name| stranger(name, Some("n"), 1, json!({"/spec/containers/0/resources/requests": requests}));
    let ledger = Ledger::of([&node], [&holds("p"), &holds("q")]);
    assert_eq!(free(&ledger, Claims::All), [6]);
    assert_eq!(ledger.size("sgx.intel.com/epc"), (1, 0));
}

#[test]
fn nodes_are_read_with_their_taints_labels_and_levels() {
    let mut node = node("n", 8);
    node.metadata.labels = Some([("topology.kubernetes.io/rack".to_owned(), "r1".to_owned())].into());
    let spec = json!({"unschedulable": true, "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]});
    node.spec = serde_json::from_value(spec).expect("a spec");
    node.status.as_mut().and_then(|status| status.conditions.as_mut()).expect("conditions")[0].status =
        "Unknown".to_owned();
    let snapshot = Ledger::of([&node], []).free(now()).expect("a snapshot");
    let node = &snapshot.nodes[0];
    assert!(node.cordoned && !node.ready);
    assert_eq!(node.taints[0].key, "nvidia.com/gpu");
    assert_eq!(snapshot.levels, ["topology.kubernetes.io/rack"]);
    assert_eq!((node.cpu_milli, node.memory), (32_000, 64 << 30));
}

#[test]
fn what_is_promised_counts_for_whoever_plans_next_until_its_pods_are_there_or_it_is_given_up() {
    let mut ledger = Ledger::of(&[node("a", 5), node("b", 3)], &[]);
    let set = first_set("one");
    let claim = Claim {
        resource: "nvidia.com/gpu".to_owned(),
        nodes: [("a".to_owned(), 4), ("b".to_owned(), 1)].into(),
    };
    let request = Request {
        cpu_milli_per_gpu: 2000,
        memory_per_gpu: 1 << 30,
        cpu_milli_per_pod: 500,
        memory_at_least: 2 << 30,
        ..Request::default()
    };
    let promise = Promise { called: "job one".to_owned(), claim, request };
    let before = ledger.changes();
    ledger.promise(set.clone(), promise);
    assert!(ledger.claims(&set.job) && ledger.changes() > before);
    assert_eq!(free(&ledger, Claims::All), [1, 2]);
    assert_eq!(ledger.gpus(now()), [("nvidia.com/gpu".to_owned(), (8, 3))].into());
    let snapshot = ledger.free(now()).expect("a snapshot");
    assert_eq!((snapshot.nodes[0].free_cpu_milli, snapshot.nodes[1].free_memory), (23_500, 62 << 30));
    // The first pod says what the whole set claims; nothing is counted twice.
    ledger.note_pod(&ours("one", &[("a", 4), ("b", 1)], 0, "2026-01-01T00:00:59Z", 7));
    assert_eq!(free(&ledger, Claims::All), [1, 2]);
    ledger.forget_pod(&ours("one", &[("a", 4), ("b", 1)], 0, "2026-01-01T00:00:59Z", 7));
    ledger.give_up(&set);
    assert_eq!(free(&ledger, Claims::All), [5, 3]);
    assert!(!ledger.claims(&set.job));
}

#[test]
fn a_watch_that_is_past_our_newest_pod_has_brought_all_older_ones() {
    let mut ledger = Ledger::of(&[node("a", 5)], &[]);
    ledger.note_pod(&ours("one", &[("a", 1), ("b", 1)], 0, NOW, 7));
    ledger.note_pod(&ours("one", &[("a", 1), ("b", 1)], 1, NOW, 9));
    ledger.has_watched(8);
    assert!(!ledger.is_past(&key("one")));
    ledger.has_watched(9);
    assert!(ledger.is_past(&key("one")));
}

#[test]
fn what_is_told_again_is_no_change() {
    let mut ledger = Ledger::of(&[node("a", 5)], &[stranger("p", Some("a"), 3, json!({}))]);
    let before = ledger.changes();
    ledger.note_node(&node("a", 5));
    ledger.note_pod(&stranger("p", Some("a"), 3, json!({})));
    assert_eq!(ledger.changes(), before);
    ledger.note_node(&node("a", 4));
    let smaller = ledger.changes();
    assert!(smaller > before);
    ledger.note_pod(&stranger("q", Some("a"), 1, json!({})));
    assert!(ledger.changes() > smaller);
}
