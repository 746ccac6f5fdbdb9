//! Snapshots as files: saved and replayed, tolerant of what is new, and firm with what cannot be.

use crate::clusters::{flat, holder, nodes};
use ronde_placement::{
    DEFAULT_RESOURCE, Effect, MOST_GPUS_OF_A_NODE, MOST_LEVELS, MOST_NODES, Node, Plan, Request, Snapshot,
    SnapshotError, Taint, plan,
};
use serde_json::{Value, json};

fn read(value: Value) -> Result<Snapshot, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[test]
fn a_saved_snapshot_gives_the_same_plan_again() {
    let mut cluster = nodes(&[5, 3, 2]);
    cluster[1].taints =
        vec![Taint { key: "k".to_owned(), value: String::new(), effect: Effect::PreferNoSchedule }];
    cluster[2].holders = vec![holder("job a", 6, 100)];
    let snapshot = flat(cluster);
    let saved = serde_json::to_string(&snapshot).expect("a snapshot is JSON");
    let replayed: Snapshot = serde_json::from_str(&saved).expect("what was saved can be read");
    assert_eq!(replayed, snapshot);
    assert_eq!(plan(&replayed, &Request::new(6)), plan(&snapshot, &Request::new(6)));
}

#[test]
fn what_is_missing_promises_nothing_and_what_is_unknown_is_passed_over() {
    let node = json!({
        "name": "node-1", "colour": "blue", "ready": true, "free_pods": 3,
        "gpus": {"nvidia.com/gpu": {"allocatable": 8, "free": 8, "health": "good"}},
    });
    let bare = json!({"name": "node-2", "gpus": {"nvidia.com/gpu": {"allocatable": 8, "free": 8}}});
    let snapshot = read(json!({"version": 1, "weather": "fine", "nodes": [node, bare]})).expect("a snapshot");
    let planned = plan(&snapshot, &Request::new(8)).expect("node-1 has 8");
    assert_eq!(planned.summary(), "8 on node-1");
    assert_eq!(planned.nodes[1].to_string(), "node-2 is not ready");
}

#[test]
fn what_is_no_cluster_is_refused_in_words() {
    let node = |name: &str, free: u32, all: u32| json!({"name": name, "gpus": {"g": {"allocatable": all, "free": free}}});
    let table = [
        (json!({"nodes": []}), "missing field `version`"),
        (json!({"version": 1}), "missing field `nodes`"),
        (json!({"version": 1, "nodes": [{}]}), "node 0 of the snapshot has no name"),
        (json!({"version": 1, "nodes": [node("a", 0, 0), node("a", 0, 0)]}), "the snapshot has two nodes a"),
        (json!({"version": 1, "nodes": [node("a", 9, 8)]}), "the snapshot says that a has 9 of 8 g free"),
        (
            json!({"version": 1, "nodes": [node("a", 9, 70_000)]}),
            "the snapshot says that a has 70000 g, and no node has more than 65535",
        ),
        (
            json!({"version": 1, "levels": ["a", "b", "c", "d", "e"], "nodes": []}),
            "the snapshot has 5 topology levels, and at most 4 can be counted",
        ),
        (
            json!({"version": 1, "levels": ["a", "a"], "nodes": []}),
            "the snapshot has the topology level a twice",
        ),
        (json!([1, 2]), "invalid"),
        (json!("nonsense"), "invalid type: string \"nonsense\", expected a snapshot of a cluster"),
    ];
    for (value, expected) in table {
        let error = read(value.clone()).expect_err("this is no snapshot");
        assert!(error.contains(expected), "{value}: {error}");
    }
}

#[test]
fn a_later_version_is_told_before_anything_it_changed() {
    let later = r#"{"version": 2, "nodes": "elsewhere"}"#;
    let error = serde_json::from_str::<Snapshot>(later).expect_err("it is a later version").to_string();
    assert!(error.starts_with("the snapshot has version 2, and this program reads version 1"), "{error}");
}

#[test]
fn a_cluster_that_is_made_is_checked_like_one_that_is_read() {
    let twice = Snapshot::new(0, vec![], vec![Node::new("a"), Node::new("a")]);
    assert_eq!(twice, Err(SnapshotError::Twice("a".to_owned())));
}

#[test]
fn a_cluster_may_be_as_large_as_the_limits_say() {
    let nodes = |count: usize| (0..count).map(|number| Node::new(number.to_string())).collect();
    assert!(Snapshot::new(0, vec![], nodes(MOST_NODES)).is_ok());
    for more in [1, 2] {
        let refused = Snapshot::new(0, vec![], nodes(MOST_NODES + more));
        assert_eq!(refused, Err(SnapshotError::Nodes(MOST_NODES + more)));
    }
    let node = Node::new("a").with_gpus("g", 0, MOST_GPUS_OF_A_NODE);
    assert!(Snapshot::new(0, vec![], vec![node]).is_ok());
    let levels = |count: usize| (0..count).map(|level| level.to_string()).collect();
    assert!(Snapshot::new(0, levels(MOST_LEVELS), vec![]).is_ok());
}

#[test]
fn the_json_of_a_plan_begins_with_its_shares_in_a_fixed_order() {
    let planned = plan(&flat(nodes(&[5, 3])), &Request::new(6)).expect("there are enough");
    let text = serde_json::to_string(&planned).expect("a plan is JSON");
    let expected = concat!(
        r#"{"shares":[{"node":"node-1","gpus":5,"chief":false},{"node":"node-2","gpus":1,"chief":true}],"#,
        r#""gpus":6,"resource":"nvidia.com/gpu","policy":"pack","#,
        r#""nodes":[{"node":"node-1","all":8,"free":5,"usable":5,"taken":5,"replicas":1,"reason":null},"#,
        r#"{"node":"node-2","all":8,"free":3,"usable":3,"taken":1,"replicas":1,"reason":{"kind":"enough"}}],"#,
        r#""alternatives":[{"policy":"balance","shares":[{"node":"node-1","gpus":3,"chief":false},"#,
        r#"{"node":"node-2","gpus":3,"chief":true}]}]}"#,
    );
    assert_eq!(text, expected);
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("what was written can be read"), planned);
}

#[test]
fn a_request_can_be_written_in_a_few_words() {
    let request: Request =
        serde_json::from_value(json!({"min": 6, "max": 8, "policy": "in-order"})).expect("a request");
    assert_eq!((request.min, request.max, request.policy.word()), (6, 8, "in-order"));
    assert_eq!(request.resource, DEFAULT_RESOURCE);
}
