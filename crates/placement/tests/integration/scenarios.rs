//! What the planner chooses, and why not something else, in small clusters that people can check in their heads.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clusters::{flat, holder, nodes};
use ronde_placement::Policy::{Balance, InOrder, Pack, Spread};
use ronde_placement::{
    Cause, DEFAULT_RESOURCE, Effect, Node, Policy, Refusal, Request, Requirement, Snapshot, Subject, Taint,
    Term, Test, Toleration, Topology, plan,
};

const BLOCK: &str = "example.com/block";
const RACK: &str = "example.com/rack";

fn summary(snapshot: &Snapshot, request: &Request) -> String {
    plan(snapshot, request).map_or_else(|refusal| refusal.to_string(), |plan| plan.summary())
}

/// The reason of this node in the plan for these GPUs.
fn reason(snapshot: &Snapshot, request: &Request, node: &str) -> String {
    let planned = plan(snapshot, request);
    let verdicts = planned.map_or_else(|refusal| refusal.nodes, |plan| plan.nodes);
    let verdict =
        verdicts.into_iter().find(|verdict| verdict.node == node).expect("the node is in the cluster");
    verdict.reason.map_or(String::new(), |reason| reason.to_string())
}

fn refusal(snapshot: &Snapshot, request: &Request) -> Refusal {
    plan(snapshot, request).expect_err("this cannot be planned")
}

#[test]
fn policies_choose_as_they_promise() {
    let table: &[(Policy, &[u32], u32, &str)] = &[
        // The users' own example, by every policy.
        (Pack, &[5, 3, 2], 6, "5 + 1 on node-1, node-3"),
        (Balance, &[5, 3, 2], 6, "3 + 3 on node-1, node-2"),
        (Spread, &[5, 3, 2], 6, "2 + 2 + 2 on node-1, node-2, node-3"),
        (InOrder, &[5, 3, 2], 6, "5 + 1 on node-1, node-2"),
        // One node is enough: the one with the smallest hole that is large enough.
        (Pack, &[8, 4, 3], 3, "3 on node-3"),
        (Pack, &[8, 4, 4], 3, "3 on node-2"),
        (Balance, &[8, 4, 3], 3, "3 on node-3"),
        (InOrder, &[3, 4, 8], 3, "3 on node-3"),
        // Two nodes either way: 6 + 4 leaves the hole of 8 whole.
        (Pack, &[8, 6, 4], 10, "6 + 4 on node-2, node-3"),
        (InOrder, &[8, 6, 4], 10, "8 + 2 on node-1, node-2"),
        // As even as the fewest nodes allow, not more.
        (Balance, &[5, 2, 2, 2], 6, "4 + 2 on node-1, node-2"),
        (Balance, &[8, 7, 6, 6], 12, "6 + 6 on node-3, node-4"),
        (Balance, &[4, 4, 4], 11, "4 + 4 + 3 on node-1, node-2, node-3"),
        // More nodes than GPUs: one each, of the nodes with the smallest holes.
        (Spread, &[8, 1, 2, 8], 2, "1 + 1 on node-2, node-3"),
        (Spread, &[1, 8, 2], 8, "5 + 2 + 1 on node-2, node-3, node-1"),
        // Everything there is.
        (Pack, &[1, 2, 3], 6, "3 + 2 + 1 on node-3, node-2, node-1"),
        // Full nodes do not disturb.
        (Pack, &[0, 2, 0, 2], 4, "2 + 2 on node-2, node-4"),
    ];
    for (policy, free, gpus, expected) in table {
        let found = summary(&flat(nodes(free)), &Request::new(*gpus).by(*policy));
        assert_eq!(found, *expected, "{gpus} GPUs of {free:?} by {policy}");
    }
}

#[test]
fn a_range_takes_as_many_as_there_are() {
    let table: &[(&[u32], u32, u32, &str)] = &[
        (&[3, 2], 4, 8, "3 + 2 on node-1, node-2"),
        (&[8, 2], 4, 8, "8 on node-1"),
        (&[4, 8], 1, 3, "3 on node-1"),
    ];
    for (free, min, max, expected) in table {
        assert_eq!(
            summary(&flat(nodes(free)), &Request::between(*min, *max)),
            *expected,
            "{free:?} {min}..{max}"
        );
    }
}

#[test]
fn the_other_policy_is_named_where_it_would_choose_something_else() {
    let planned = plan(&flat(nodes(&[5, 3, 2])), &Request::new(6)).expect("there are enough");
    let [other] = planned.alternatives.as_slice() else { panic!("one alternative: {planned:?}") };
    assert_eq!((other.policy, other.shares[0].gpus, other.shares[1].gpus), (Balance, 3, 3));
    let planned = plan(&flat(nodes(&[4, 4])), &Request::new(8)).expect("there are enough");
    assert_eq!(planned.alternatives, []);
}

/// Racks `a`: 4 + 4, `b`: 8 + 1, and `c`: 6, in the blocks `x`: a, b and `y`: c.
fn racks() -> Snapshot {
    let place = [("x", "a"), ("x", "a"), ("x", "b"), ("x", "b"), ("y", "c")];
    let label =
        |(node, (block, rack)): (Node, (&str, &str))| node.with_label(BLOCK, block).with_label(RACK, rack);
    let nodes = nodes(&[4, 4, 8, 1, 6]).into_iter().zip(place).map(label).collect();
    Snapshot::new(0, vec![BLOCK.to_owned(), RACK.to_owned()], nodes).expect("a cluster")
}

fn within(level: &str, required: bool) -> Option<Topology> {
    Some(Topology { level: level.to_owned(), required })
}

#[test]
fn fewer_domains_go_before_fewer_nodes() {
    let table: &[(u32, &str)] = &[
        (8, "8 on node-3"),
        // One rack with two nodes, although 8 + 1 and 6 + 3 are two nodes as well.
        (9, "8 + 1 on node-3, node-4"),
        // One block, not the two nodes with 8 and 6 in two.
        (14, "8 + 4 + 2 on node-3, node-1, node-2"),
        (17, "8 + 4 + 4 + 1 on node-3, node-1, node-2, node-4"),
        (18, "8 + 6 + 4 on node-3, node-5, node-1"),
    ];
    for (gpus, expected) in table {
        assert_eq!(summary(&racks(), &Request::new(*gpus)), *expected, "{gpus} GPUs");
    }
}

#[test]
fn of_as_few_nodes_in_as_few_racks_those_with_the_fewest_free_gpus_are_taken() {
    let racks = ["a", "a", "a", "a", "b", "b", "b", "c"];
    let nodes = nodes(&[6, 1, 6, 5, 10, 4, 5, 12]);
    let nodes = nodes.into_iter().zip(racks).map(|(node, rack)| node.with_label(RACK, rack)).collect();
    let cluster = Snapshot::new(0, vec![RACK.to_owned()], nodes).expect("a cluster");
    // Two racks have 33 only with six nodes. All but node-2 would do as well, but 3 GPUs would be left over.
    let expected = "10 + 6 + 6 + 5 + 5 + 1 on node-5, node-1, node-3, node-4, node-7, node-2";
    assert_eq!(summary(&cluster, &Request::new(33)), expected);
}

#[test]
fn levels_inside_a_preferred_one_do_not_count() {
    let request = |topology| Request { topology, ..Request::new(11) };
    // By blocks the best fit is 8 + 4, and rack b is no reason to use three nodes.
    assert_eq!(summary(&racks(), &request(within(BLOCK, false))), "8 + 3 on node-3, node-1");
    assert_eq!(summary(&racks(), &request(None)), "8 + 3 on node-3, node-1");
}

#[test]
fn a_required_level_is_kept_or_refused() {
    let request = |gpus| Request { topology: within(RACK, true), ..Request::new(gpus) };
    assert_eq!(summary(&racks(), &request(9)), "8 + 1 on node-3, node-4");
    let refusal = refusal(&racks(), &request(10));
    let (level, resource) = (Some(RACK.to_owned()), DEFAULT_RESOURCE.to_owned());
    assert_eq!(refusal.cause, Cause::NotEnough { wanted: 10, usable: 9, level, resource });
    assert_eq!(
        refusal.headline(),
        "10 GPUs (nvidia.com/gpu) are asked for, and 9 can be had in one domain of example.com/rack now"
    );
    // In order and spread stay in one rack too.
    assert_eq!(summary(&racks(), &request(7).by(InOrder)), "7 on node-3");
    assert_eq!(summary(&racks(), &request(2).by(Spread)), "1 + 1 on node-1, node-2");
}

#[test]
fn a_node_without_the_required_label_says_so() {
    let mut snapshot = racks();
    Arc::make_mut(&mut snapshot.nodes[2].labels).remove(RACK);
    let request = Request { topology: within(RACK, true), ..Request::new(8) };
    assert_eq!(summary(&snapshot, &request), "4 + 4 on node-1, node-2");
    assert_eq!(reason(&snapshot, &request, "node-3"), "has no label example.com/rack");
}

#[test]
fn every_node_that_is_passed_over_has_its_reason() {
    let table: &[(Policy, &[u32], u32, &str, &str)] = &[
        (Pack, &[5, 3, 2], 6, "node-2", "6 = 5 + 1 needs one more GPU; node-3 fits tighter"),
        (Pack, &[5, 3, 2], 6, "node-3", "gives as many as are needed"),
        (Pack, &[5, 3, 2], 6, "node-1", ""),
        (Pack, &[4, 4, 4], 8, "node-3", "fits as well as node-2, which comes first"),
        (Pack, &[4, 4, 1], 8, "node-3", "is too small: 8 = 4 + 4 needs 4 GPUs on every node"),
        (Balance, &[5, 3, 2], 6, "node-3", "is too small: 6 = 3 + 3 needs 3 GPUs on every node"),
        (Balance, &[8, 3, 3], 6, "node-2", "is too small: 6 = 6 needs 6 GPUs on every node"),
        (InOrder, &[5, 3, 2], 6, "node-3", "is not needed: 6 = 5 + 1"),
        (Spread, &[1, 1, 8], 2, "node-3", "2 = 1 + 1 needs one more GPU; node-2 fits tighter"),
        (Pack, &[8, 0], 1, "node-2", "is full"),
    ];
    for (policy, free, gpus, node, expected) in table {
        let found = reason(&flat(nodes(free)), &Request::new(*gpus).by(*policy), node);
        assert_eq!(found, *expected, "{node} of {free:?}, {gpus} GPUs by {policy}");
    }
    assert_eq!(reason(&racks(), &Request::new(9), "node-1"), "is outside rack b, where all fit");
    assert_eq!(reason(&racks(), &Request::new(12), "node-5"), "is outside block x, where all fit");
    let mut flattened = racks();
    flattened.levels.remove(0);
    let two_racks = "is outside the domains of rack that are used, and 2 are enough";
    assert_eq!(reason(&flattened, &Request::new(16), "node-5"), two_racks);
}

/// What is wrong with a node.
type Flaw = Box<dyn Fn(&mut Node)>;

/// A cluster in which `node-1` has a flaw, and `node-2` can give the one GPU that is asked for.
fn flawed(flaw: impl Fn(&mut Node)) -> Snapshot {
    let mut nodes = nodes(&[1, 2]);
    flaw(&mut nodes[0]);
    flat(nodes)
}

#[test]
fn nodes_that_cannot_be_used_are_not_and_say_why() {
    let taint = |effect| Taint { key: "dedicated".to_owned(), value: "ml".to_owned(), effect };
    let plain = Request::new(1);
    let picky = Request {
        product: Some("h100".to_owned()),
        cpu_milli_per_gpu: 1500,
        memory_per_gpu: 3 << 30,
        node_selector: BTreeMap::from([("zone".to_owned(), "z1".to_owned())]),
        ..Request::new(1)
    };
    let fit = |node: &mut Node| {
        node.product = Some("NVIDIA-H100-80GB-HBM3".to_owned());
        Arc::make_mut(&mut node.labels).insert("zone".to_owned(), "z1".to_owned());
    };
    let excluded = BTreeMap::from([("node-1".to_owned(), "its pod was not scheduled in 60 s".to_owned())]);
    let without = Request { excluded, ..Request::new(1) };
    let table: Vec<(&Request, Flaw, &str)> = vec![
        (&plain, Box::new(|node| node.cordoned = true), "is cordoned"),
        (&plain, Box::new(|node| node.ready = false), "is not ready"),
        (&plain, Box::new(|node| node.free_pods = 0), "takes no more pods"),
        (&plain, Box::new(|node| node.gpus.clear()), "has no nvidia.com/gpu"),
        (
            &plain,
            Box::new(move |node| node.taints = vec![taint(Effect::NoSchedule)]),
            "is tainted dedicated=ml:NoSchedule",
        ),
        (
            &plain,
            Box::new(move |node| node.taints = vec![taint(Effect::NoExecute)]),
            "is tainted dedicated=ml:NoExecute",
        ),
        (&without, Box::new(|_| ()), "is left out: its pod was not scheduled in 60 s"),
        (&picky, Box::new(|_| ()), "is not labelled zone=z1"),
        (
            &picky,
            Box::new(move |node| {
                fit(node);
                node.product = None
            }),
            "does not say whether its GPUs are h100",
        ),
        (
            &picky,
            Box::new(move |node| {
                fit(node);
                node.product = Some("Tesla-T4".to_owned())
            }),
            "has Tesla-T4, not h100",
        ),
        (
            &picky,
            Box::new(move |node| {
                fit(node);
                node.free_cpu_milli = 500
            }),
            "has 0.5 CPUs free; each GPU needs 1.5",
        ),
        (
            &picky,
            Box::new(move |node| {
                fit(node);
                node.free_memory = 5 << 29
            }),
            "has 2.5 GiB of memory free; each GPU needs 3 GiB",
        ),
    ];
    for (request, flaw, expected) in table {
        let mut snapshot = flawed(flaw);
        fit(&mut snapshot.nodes[1]);
        assert_eq!(summary(&snapshot, request), "1 on node-2", "{expected}");
        assert_eq!(reason(&snapshot, request, "node-1"), expected);
    }
}

#[test]
fn a_node_must_fit_one_term_of_the_affinity_and_all_that_it_says() {
    let label = |key: &str, is| Requirement { of: Subject::Label(key.to_owned()), is };
    let name = |is| Requirement { of: Subject::Name, is };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    // node-1 is in zone a and has 8 cores; node-2 in zone b, with so many that nobody can count them; node-3 says nothing.
    let table: Vec<(Vec<Requirement>, &[&str])> = vec![
        (vec![label("zone", Test::In(words(&["a", "c"])))], &["node-1"]),
        (vec![label("zone", Test::In(vec![]))], &[]),
        (vec![label("zone", Test::NotIn(words(&["a"])))], &["node-2", "node-3"]),
        (vec![label("zone", Test::Exists)], &["node-1", "node-2"]),
        (vec![label("zone", Test::DoesNotExist)], &["node-3"]),
        (vec![label("cores", Test::Above(7))], &["node-1"]),
        (vec![label("cores", Test::Above(8))], &[]),
        (vec![label("cores", Test::Below(9))], &["node-1"]),
        (vec![label("zone", Test::Exists), label("cores", Test::Above(7))], &["node-1"]),
        (vec![name(Test::In(words(&["node-2"])))], &["node-2"]),
        (vec![name(Test::NotIn(words(&["node-2"]))), label("zone", Test::Exists)], &["node-1"]),
        (vec![], &["node-1", "node-2", "node-3"]),
    ];
    let labels = [&[("zone", "a"), ("cores", "8")][..], &[("zone", "b"), ("cores", "many")], &[]];
    let mut cluster = nodes(&[1, 1, 1]);
    for (node, labels) in cluster.iter_mut().zip(labels) {
        *node = labels.iter().fold(node.clone(), |node, (key, value)| node.with_label(key, value));
    }
    let snapshot = flat(cluster);
    for (requirements, expected) in table {
        let request = Request { affinity: vec![Term(requirements)], ..Request::between(1, 3) };
        let verdicts = plan(&snapshot, &request).map_or_else(|refusal| refusal.nodes, |plan| plan.nodes);
        let fit: Vec<_> =
            verdicts.iter().filter(|node| node.usable > 0).map(|node| node.node.as_str()).collect();
        assert_eq!(fit, expected, "{:?}", request.affinity);
    }
    let either = vec![
        Term(vec![label("zone", Test::In(words(&["a", "c"]))), label("slow", Test::DoesNotExist)]),
        Term(vec![label("cores", Test::Above(64))]),
    ];
    let request = Request { affinity: either, ..Request::new(9) };
    let said = "does not fit the node affinity zone in (a, c), !slow or cores > 64";
    assert_eq!(reason(&snapshot, &request, "node-3"), said);
    // That is not going to change.
    assert!(matches!(refusal(&snapshot, &request).cause, Cause::Never { all: 8, .. }));
}

#[test]
fn taints_that_are_tolerated_or_mild_do_not_matter() {
    let tainted = |effect| {
        flawed(move |node| {
            node.taints =
                vec![Taint { key: DEFAULT_RESOURCE.to_owned(), value: "present".to_owned(), effect }]
        })
    };
    assert_eq!(summary(&tainted(Effect::PreferNoSchedule), &Request::new(1)), "1 on node-1");
    let tolerations: Vec<(Toleration, &str)> = vec![
        (Toleration::of_key(DEFAULT_RESOURCE), "node-1"),
        (Toleration::default(), "node-1"),
        (Toleration { value: Some("present".to_owned()), ..Toleration::of_key(DEFAULT_RESOURCE) }, "node-1"),
        (Toleration { value: Some("absent".to_owned()), ..Toleration::of_key(DEFAULT_RESOURCE) }, "node-2"),
        (Toleration { effect: Some(Effect::NoExecute), ..Toleration::of_key(DEFAULT_RESOURCE) }, "node-2"),
        (Toleration::of_key("dedicated"), "node-2"),
    ];
    for (toleration, node) in tolerations {
        let request = Request { tolerations: vec![toleration], ..Request::new(1) };
        assert_eq!(summary(&tainted(Effect::NoSchedule), &request), format!("1 on {node}"), "{request:?}");
    }
}

#[test]
fn cpu_memory_and_the_limit_for_a_node_make_it_smaller() {
    let mut nodes = nodes(&[8, 8, 8]);
    nodes[0].free_cpu_milli = 5000;
    nodes[1].free_memory = 3 << 30;
    let snapshot = flat(nodes);
    let request =
        Request { cpu_milli_per_gpu: 2000, memory_per_gpu: 1 << 30, per_node: Some(4), ..Request::new(9) };
    assert_eq!(summary(&snapshot, &request), "4 + 3 + 2 on node-3, node-2, node-1");
    assert_eq!(reason(&snapshot, &request, "node-1"), "has 5 CPUs free; each GPU needs 2");
    assert_eq!(reason(&snapshot, &request, "node-2"), "has 3 GiB of memory free; each GPU needs 1 GiB");
    assert_eq!(reason(&snapshot, &request, "node-3"), "gives no more than 4, the limit for a node");
}

#[test]
fn where_no_pod_fits_that_is_said_and_no_hint_given_that_would_not_help() {
    let cluster = |cpu: u64, memory: u64| {
        let mut nodes = nodes(&[8]);
        (nodes[0].free_cpu_milli, nodes[0].free_memory) = (cpu, memory);
        flat(nodes)
    };
    // What brings our program into pods, and nothing else.
    let plain = Request { cpu_milli_at_least: 100, memory_at_least: 128 << 20, ..Request::new(1) };
    let picky = Request { cpu_milli_per_gpu: 2000, memory_per_gpu: 1 << 30, ..plain.clone() };
    let sidecar = Request { cpu_milli_per_pod: 3500, memory_per_pod: 1 << 30, ..picky.clone() };
    let plenty = 64 << 30;
    let table = [
        (&plain, cluster(50, plenty), "has 0.05 CPUs free; a pod needs 0.1", None),
        (&plain, cluster(9000, 64 << 20), "has 64 MiB of memory free; a pod needs 128 MiB", None),
        (&picky, cluster(50, plenty), "has 0.05 CPUs free; a pod needs 0.1", None),
        (&picky, cluster(1500, plenty), "has 1.5 CPUs free; each GPU needs 2", Some("less CPU a GPU")),
        (&sidecar, cluster(3000, plenty), "has 3 CPUs free; a pod needs 3.5", None),
        (
            &sidecar,
            cluster(5000, plenty),
            "has 5 CPUs free; a pod needs 3.5, and 2 for each GPU",
            Some("less CPU a GPU"),
        ),
        (
            &sidecar,
            cluster(9000, 3 << 29),
            "has 1.5 GiB of memory free; a pod needs 1 GiB, and 1 GiB for each GPU",
            Some("less memory a GPU"),
        ),
    ];
    for (request, snapshot, said, hint) in table {
        assert_eq!(reason(&snapshot, request, "node-1"), said);
        let help = refusal(&snapshot, request).help();
        let expected = hint.map(|hint| format!("{hint} would add 8 free GPUs of node-1"));
        assert_eq!(help, expected.into_iter().collect::<Vec<_>>(), "{said}");
    }
}

#[test]
fn a_limit_for_a_node_is_named_where_a_higher_one_would_help() {
    let refused = refusal(&flat(nodes(&[8, 4])), &Request { per_node: Some(5), ..Request::new(12) });
    assert_eq!(refused.help(), ["a higher limit for a node would add 3 free GPUs of node-1"]);
}

#[test]
fn a_cordoned_node_that_is_full_is_no_help() {
    let mut nodes = nodes(&[2, 0]);
    nodes[1].cordoned = true;
    assert_eq!(refusal(&flat(nodes), &Request::new(4)).help(), ["2 GPUs could start now: --gpus 2"]);
}

#[test]
fn a_summary_names_eight_nodes_at_most() {
    let ones = |count: usize| flat(nodes(&vec![1; count]));
    let (shares, names) = (["1"; 8].join(" + "), (1..=8).map(|node| format!("node-{node}")));
    let names = names.collect::<Vec<_>>().join(", ");
    assert_eq!(summary(&ones(8), &Request::new(8)), format!("{shares} on {names}"));
    assert_eq!(summary(&ones(9), &Request::new(9)), format!("{shares} + … on {names}, and 1 more"));
}

#[test]
fn waiting_says_for_what() {
    let mut nodes = nodes(&[2, 2, 0, 0]);
    nodes[1].cordoned = true;
    nodes[0].holders = vec![holder("pod default/notebook-0", 6, 59)];
    nodes[3].holders = vec![holder("job small-b1c", 1, 90), holder("job bert-a91", 7, 12_000)];
    let refusal = refusal(&flat(nodes), &Request::new(4));
    assert_eq!(refusal.missing(), Some(2));
    let expected = "waiting for 2 more GPUs: node-2 is cordoned, node-3 is full, \
        node-4 is full (job bert-a91, 3 h 20 m so far; 1 more), node-1 has only 2 free (pod default/notebook-0, 59 s so far)";
    assert_eq!(refusal.waiting().as_deref(), Some(expected));
    assert_eq!(
        refusal.help(),
        ["2 GPUs could start now: --gpus 2", "kubectl uncordon node-2 would add 2 free GPUs"]
    );
}

#[test]
fn ages_have_two_units_at_most() {
    let table = [(0, "0 s"), (61, "1 m"), (3600, "1 h 0 m"), (90_000, "1 d 1 h")];
    for (seconds, expected) in table {
        let mut nodes = nodes(&[0]);
        nodes[0].holders = vec![holder("job a", 8, seconds)];
        let text = refusal(&flat(nodes), &Request::new(1)).waiting().expect("GPUs may become free");
        assert_eq!(text, format!("waiting for 1 more GPU: node-1 is full (job a, {expected} so far)"));
    }
}

#[test]
fn what_can_never_be_is_said_to_be_so() {
    let request = Request::new(17);
    let refusal = refusal(&flat(nodes(&[8, 1])), &request);
    assert_eq!(refusal.cause, Cause::Never { wanted: 17, all: 16, level: None, resource: request.resource });
    assert_eq!(refusal.waiting(), None);
    let text = "17 GPUs (nvidia.com/gpu) are asked for, and there are only 16, even if nobody used any: node-2 has only 1 free";
    assert_eq!(refusal.to_string(), text);
    let none = plan(&flat(vec![]), &Request::new(1)).expect_err("there is no node");
    assert_eq!(
        none.to_string(),
        "1 GPU (nvidia.com/gpu) is asked for, and there are none, even if nobody used any"
    );
}

#[test]
fn what_is_not_possible_now_is_not_said_to_be_never() {
    let flaws: [fn(&mut Node); 4] = [
        |node| node.cordoned = true,
        |node| node.ready = false,
        |node| node.free_memory = 0,
        |node| {
            let (key, value) = ("team".to_owned(), String::new());
            node.taints = vec![Taint { key, value, effect: Effect::NoSchedule }];
        },
    ];
    for flaw in flaws {
        let mut nodes = nodes(&[8, 8]);
        flaw(&mut nodes[0]);
        let request = Request { memory_per_gpu: 1, ..Request::new(16) };
        assert_eq!(refusal(&flat(nodes), &request).missing(), Some(8));
    }
    // Left out for a while, after a pod was not placed there.
    let excluded = BTreeMap::from([("node-1".to_owned(), "it did not take a pod".to_owned())]);
    let refused = refusal(&flat(nodes(&[8, 8])), &Request { excluded, ..Request::new(16) });
    let text = "waiting for 8 more GPUs: node-1 is left out: it did not take a pod";
    assert_eq!(refused.waiting().as_deref(), Some(text));
}

#[test]
fn more_cpu_or_memory_than_any_node_has_is_never() {
    let mut nodes = nodes(&[8, 8]);
    for node in &mut nodes {
        (node.cpu_milli, node.memory) = (64_000, 512 << 30);
        (node.free_cpu_milli, node.free_memory) = (0, 0);
    }
    let with =
        |cpu_milli_per_gpu, memory_per_gpu| Request { cpu_milli_per_gpu, memory_per_gpu, ..Request::new(9) };
    let cluster = flat(nodes);
    assert_eq!(refusal(&cluster, &with(8_000, 64 << 30)).missing(), Some(9));
    for request in [with(65_000, 0), with(0, 1 << 40), with(16_000, 0)] {
        assert!(matches!(refusal(&cluster, &request).cause, Cause::Never { .. }), "{request:?}");
    }
}

#[test]
fn any_label_that_nodes_have_can_be_a_level() {
    let mut cluster = racks();
    let request = Request { topology: within(BLOCK, true), ..Request::new(8) };
    let expected = summary(&cluster, &request);
    // Nobody said that it is a level.
    cluster.levels.retain(|level| level != BLOCK);
    assert_eq!(summary(&cluster, &request), expected);
    cluster.levels.clear();
    let preferred = Request { topology: within(RACK, false), ..Request::new(2) };
    assert!(plan(&cluster, &preferred).is_ok());
}

#[test]
fn requests_that_make_no_sense_are_refused_whatever_the_cluster() {
    let table = [
        (Request::new(0), "a job of 0 GPUs cannot be planned; ask for at least one"),
        (Request::between(4, 2), "at least 4 and at most 2 GPUs is no range"),
        (Request::new(u32::MAX), "4294967295 GPUs are more than can be planned, 100000"),
        (
            Request { per_node: Some(0), ..Request::new(1) },
            "with at most 0 GPUs of a node there can be no job",
        ),
        (
            Request { topology: within("rack", true), ..Request::new(1) },
            "there is no topology level rack; there are example.com/block, example.com/rack",
        ),
    ];
    for (request, expected) in table {
        let refusal = refusal(&racks(), &request);
        assert!(matches!(refusal.cause, Cause::Invalid { .. }), "{refusal:?}");
        assert_eq!(refusal.to_string(), expected);
    }
}

#[test]
fn resources_are_counted_apart() {
    let mig = "nvidia.com/mig-1g.10gb";
    let mut nodes = nodes(&[8, 8]);
    nodes[1] = nodes[1].clone().with_gpus(mig, 7, 7);
    nodes[1].holders = vec![holder("job whole", 8, 10)];
    let request = Request { resource: mig.to_owned(), ..Request::new(8) };
    assert_eq!(refusal(&flat(nodes.clone()), &request).missing(), None);
    let request = Request { min: 7, max: 7, ..request };
    assert_eq!(summary(&flat(nodes), &request), "7 on node-2");
}

#[test]
fn what_a_pod_needs_besides_is_counted_once_and_what_it_needs_before_in_any_case() {
    let usable = |request: Request| {
        let mut nodes = nodes(&[8]);
        (nodes[0].free_cpu_milli, nodes[0].free_memory) = (9000, 9 << 30);
        plan(&flat(nodes), &request).map(|plan| plan.shares[0].gpus).ok()
    };
    let each = Request { cpu_milli_per_gpu: 1000, memory_per_gpu: 1 << 30, ..Request::between(1, 8) };
    assert_eq!(usable(each.clone()), Some(8));
    assert_eq!(usable(Request { cpu_milli_per_pod: 2000, ..each.clone() }), Some(7));
    assert_eq!(usable(Request { memory_per_pod: 7 << 30, ..each.clone() }), Some(2));
    assert_eq!(usable(Request { cpu_milli_at_least: 9000, ..each.clone() }), Some(8));
    assert_eq!(usable(Request { memory_at_least: 10 << 30, ..each }), None);
    assert_eq!(usable(Request { cpu_milli_per_pod: 9001, ..Request::new(1) }), None);
}
