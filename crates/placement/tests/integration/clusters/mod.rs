//! Small clusters, for tests.

use ronde_placement::{DEFAULT_RESOURCE, Holder, Node, Snapshot};

/// When the clusters' snapshots are taken.
pub(crate) const NOW: u64 = 1_800_000_000;

/// `node-1` and so on with so many GPUs free, of 8 each.
pub(crate) fn nodes(free: &[u32]) -> Vec<Node> {
    let node = |(free, number): (&u32, usize)| {
        Node::new(format!("node-{number}")).with_gpus(DEFAULT_RESOURCE, *free, 8.max(*free))
    };
    free.iter().zip(1..).map(node).collect()
}

/// A cluster of these nodes, without a topology.
pub(crate) fn flat(nodes: Vec<Node>) -> Snapshot {
    Snapshot::new(NOW, vec![], nodes).expect("a cluster")
}

/// Somebody with so many GPUs for so many seconds.
pub(crate) fn holder(name: &str, gpus: u32, seconds: u64) -> Holder {
    Holder { name: name.to_owned(), resource: DEFAULT_RESOURCE.to_owned(), gpus, since: NOW - seconds }
}
