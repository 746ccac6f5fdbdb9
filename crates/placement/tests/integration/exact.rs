//! The planner against the plain meaning of its policies: on small clusters every way to hand out the GPUs is tried, and
//! the best by the policy's list of aims must be what was planned.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use proptest::prelude::*;
use ronde_placement::{Cause, DEFAULT_RESOURCE, Node, Plan, Policy, Request, Snapshot, Topology, plan};

const LEVELS: [&str; 3] = ["example.com/block", "example.com/rack", "example.com/nvlink-domain"];

/// One way to hand out GPUs: how many of each node, in the snapshot's order.
type Ways = Vec<Vec<u32>>;

/// A cluster and a request, and what both mean, worked out the slow way.
#[derive(Debug)]
struct Case {
    snapshot: Snapshot,
    request: Request,
}

impl Case {
    fn free(&self, node: usize) -> u32 {
        self.snapshot.nodes[node].gpus[DEFAULT_RESOURCE].free
    }

    /// How many GPUs of a node the job can have: free, within the limit, and with a CPU each.
    fn usable(&self, node: usize) -> u32 {
        let Node { free_cpu_milli, cordoned, labels, .. } = &self.snapshot.nodes[node];
        let nowhere = self.required().is_some_and(|level| !labels.contains_key(&self.snapshot.levels[level]));
        if *cordoned || nowhere {
            return 0;
        }
        let cpu = u32::try_from(free_cpu_milli / self.request.cpu_milli_per_gpu).unwrap_or(u32::MAX);
        self.free(node).min(cpu).min(self.request.per_node.unwrap_or(u32::MAX))
    }

    fn required(&self) -> Option<usize> {
        let topology = self.request.topology.as_ref().filter(|topology| topology.required)?;
        self.snapshot.levels.iter().position(|level| *level == topology.level)
    }

    /// How many levels count.
    fn levels(&self) -> usize {
        match &self.request.topology {
            Some(Topology { level, required: false }) => {
                self.snapshot.levels.iter().position(|known| known == level).expect("a known level") + 1
            }
            _ => self.snapshot.levels.len(),
        }
    }

    /// The domain of a node at a level: the labels down to it. Without a label it is a domain of its own, after all others.
    fn domain(&self, node: usize, level: usize) -> Vec<(bool, String)> {
        let Node { name, labels, .. } = &self.snapshot.nodes[node];
        let label =
            |level: &String| labels.get(level).map_or((true, name.clone()), |value| (false, value.clone()));
        self.snapshot.levels[..=level].iter().map(label).collect()
    }

    fn used(way: &[u32]) -> Vec<usize> {
        (0..way.len()).filter(|node| way[*node] > 0).collect()
    }

    fn domains_at(&self, way: &[u32], level: usize) -> usize {
        Case::used(way).iter().map(|node| self.domain(*node, level)).collect::<BTreeSet<_>>().len()
    }

    /// How many domains of each level are used, the outermost first.
    fn domains(&self, way: &[u32]) -> Vec<usize> {
        (0..self.levels()).map(|level| self.domains_at(way, level)).collect()
    }

    /// How many GPUs are free on the used nodes.
    fn opened(&self, way: &[u32]) -> u32 {
        Case::used(way).iter().map(|node| self.free(*node)).sum()
    }

    /// The used nodes, as places in the order by topology and name.
    fn places(&self, way: &[u32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..way.len()).collect();
        let path = |node: usize| (0..self.levels()).map(|level| self.domain(node, level)).collect::<Vec<_>>();
        order.sort_by_key(|node| (path(*node), self.snapshot.nodes[*node].name.clone()));
        (0..way.len()).filter(|place| way[order[*place]] > 0).collect()
    }

    /// The shares, those of nodes that can give the most first, equal ones by name.
    fn by_size(&self, way: &[u32]) -> Vec<u32> {
        let mut order: Vec<usize> = (0..way.len()).collect();
        order.sort_by_key(|node| (Reverse(self.usable(*node)), &self.snapshot.nodes[*node].name));
        order.into_iter().map(|node| way[node]).collect()
    }

    /// All ways to hand out this many GPUs that the request allows.
    fn ways(&self, gpus: u32) -> Ways {
        let mut ways = vec![vec![]];
        for node in 0..self.snapshot.nodes.len() {
            let extend = |way: &Vec<u32>| {
                let left = gpus - way.iter().sum::<u32>();
                let way = way.clone();
                (0..=self.usable(node).min(left)).map(move |share| [&way[..], &[share]].concat())
            };
            ways = ways.iter().flat_map(extend).collect();
        }
        ways.retain(|way| way.iter().sum::<u32>() == gpus);
        ways.retain(|way| self.required().is_none_or(|level| self.domains_at(way, level) == 1));
        ways
    }

    /// The best way by the aims of the policy, which are a list that is compared from its front.
    fn best(&self, gpus: u32) -> Option<Vec<u32>> {
        let ways = self.ways(gpus).into_iter();
        let nodes = |way: &[u32]| Case::used(way).len();
        let top = |way: &[u32]| way.iter().copied().max();
        let bottom = |way: &[u32]| way.iter().copied().filter(|share| *share > 0).min();
        let evenness = |way: &[u32]| {
            let mut shares = way.to_vec();
            shares.sort_by_key(|share| Reverse(*share));
            shares
        };
        match self.request.policy {
            Policy::Pack => ways.min_by_key(|way| {
                (
                    self.domains(way),
                    nodes(way),
                    self.opened(way),
                    self.places(way),
                    Reverse(self.by_size(way)),
                )
            }),
            Policy::Balance => ways.min_by_key(|way| {
                let shape = (self.domains(way), nodes(way), top(way), Reverse(bottom(way)));
                (shape, self.opened(way), self.places(way), evenness(way), Reverse(self.by_size(way)))
            }),
            Policy::Spread => ways.min_by_key(|way| {
                let shape = (Reverse(nodes(way)), top(way), Reverse(bottom(way)), self.domains(way));
                (shape, self.opened(way), self.places(way), evenness(way), Reverse(self.by_size(way)))
            }),
            Policy::InOrder => ways.min_by_key(|way| {
                let domain = self.required().map(|level| self.domain(Case::used(way)[0], level));
                (nodes(way), domain, Reverse(self.by_size(way)))
            }),
        }
    }

    /// The most GPUs within the request that can be had.
    fn most(&self) -> Option<u32> {
        (self.request.min..=self.request.max).rev().find(|gpus| !self.ways(*gpus).is_empty())
    }

    fn way_of(&self, plan: &Plan) -> Vec<u32> {
        let share = |node: &Node| plan.share(&node.name).map_or(0, |share| share.gpus);
        self.snapshot.nodes.iter().map(share).collect()
    }
}

fn nodes(levels: usize) -> impl Strategy<Value = Vec<Node>> {
    let label =
        prop_oneof![4 => Just(Some("a")), 3 => Just(Some("b")), 2 => Just(Some("c")), 1 => Just(None)];
    let labels = proptest::collection::vec(label, levels);
    let cpus = prop_oneof![3 => Just(100), 1 => 0..=5_u64];
    let node = (0..=5_u32, cpus, proptest::bool::weighted(0.1), labels);
    let node = node.prop_map(|(free, cpus, cordoned, labels)| {
        let mut node = Node::new("").with_gpus(DEFAULT_RESOURCE, free, 8);
        (node.free_cpu_milli, node.cordoned) = (cpus * 1000, cordoned);
        let known = LEVELS.iter().zip(labels).filter_map(|(key, value)| Some((key, value?)));
        known.fold(node, |node, (key, value)| node.with_label(key, value))
    });
    let named = |mut nodes: Vec<Node>| {
        nodes.iter_mut().enumerate().for_each(|(index, node)| node.name = format!("node-{index}"));
        nodes
    };
    proptest::collection::vec(node, 1..=7).prop_map(named).prop_shuffle()
}

fn cases() -> impl Strategy<Value = Case> {
    (0..=LEVELS.len()).prop_flat_map(|levels| {
        let topology = (0..levels.max(1), any::<bool>()).prop_map(move |(level, required)| {
            (levels > 0).then(|| Topology { level: LEVELS[level].to_owned(), required })
        });
        let topology = prop_oneof![Just(None), topology];
        let limit = prop_oneof![3 => Just(None), 1 => (1..=4_u32).prop_map(Some)];
        let policy = proptest::sample::select(Policy::ALL.to_vec());
        (nodes(levels), 1..=14_u32, 0..=4_u32, topology, limit, policy).prop_map(
            move |(nodes, min, more, topology, per_node, policy)| {
                let levels = LEVELS[..levels].iter().map(|level| (*level).to_owned()).collect();
                let request = Request {
                    topology,
                    per_node,
                    cpu_milli_per_gpu: 1000,
                    ..Request::between(min, min + more).by(policy)
                };
                Case { snapshot: Snapshot::new(0, levels, nodes).expect("a cluster"), request }
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_other_way_to_hand_out_the_gpus_is_better(case in cases()) {
        match (plan(&case.snapshot, &case.request), case.most()) {
            (Ok(plan), Some(gpus)) => {
                prop_assert_eq!(plan.gpus, gpus);
                prop_assert_eq!(Some(case.way_of(&plan)), case.best(gpus));
            }
            (Err(refusal), None) => {
                let invalid = matches!(refusal.cause, Cause::Invalid { .. });
                prop_assert!(!invalid, "{refusal}");
            }
            (planned, possible) => prop_assert!(false, "planned {planned:?}, and possible are {possible:?}"),
        }
    }

    #[test]
    fn every_node_is_accounted_for_and_the_chief_has_the_last_and_smallest_share(case in cases()) {
        let Ok(plan) = plan(&case.snapshot, &case.request) else { return Ok(()) };
        prop_assert_eq!(plan.nodes.len(), case.snapshot.nodes.len());
        for verdict in &plan.nodes {
            prop_assert_eq!(verdict.taken, plan.share(&verdict.node).map_or(0, |share| share.gpus));
            prop_assert_eq!(verdict.reason.is_some(), verdict.taken < verdict.free || verdict.free == 0);
        }
        let sizes: Vec<u32> = plan.shares.iter().map(|share| share.gpus).collect();
        prop_assert!(sizes.is_sorted_by(|a, b| a >= b));
        let chiefs: Vec<bool> = plan.shares.iter().map(|share| share.chief).collect();
        prop_assert_eq!(chiefs.iter().position(|chief| *chief), Some(chiefs.len() - 1));
    }

    #[test]
    fn the_order_in_which_nodes_are_listed_changes_nothing(case in cases()) {
        let mut nodes = case.snapshot.nodes.clone();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let sorted = Snapshot::new(0, case.snapshot.levels.clone(), nodes).expect("the same cluster");
        prop_assert_eq!(plan(&sorted, &case.request), plan(&case.snapshot, &case.request));
    }
}
