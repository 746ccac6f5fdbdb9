//! What is known of a cluster at one moment: its nodes, who holds their GPUs, and when it was.
//!
//! A snapshot is the planner's only view of the world. It can be saved and replayed, so its fields are part of a file
//! format: unknown ones are passed over, missing ones get the value that promises least, and what cannot be true of any
//! cluster is refused when it is read, with the node's name. [`VERSION`] changes only if an older reader would
//! misunderstand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version of the file format.
pub const VERSION: u32 = 1;
/// More topology levels than any cluster has, and as many as the planner can count.
pub const MOST_LEVELS: usize = 4;
/// More GPUs than any node has, however often they are sliced.
pub const MOST_GPUS_OF_A_NODE: u32 = 65_535;
/// How many nodes a snapshot may have.
pub const MOST_NODES: usize = 200_000;

/// A cluster at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Draft")]
pub struct Snapshot {
    /// Always [`VERSION`]; the first field, so that a reader sees it before anything it may not understand.
    version: Version,
    /// When it was taken, in seconds since 1970.
    pub taken: u64,
    /// The label keys that say where a node stands, from the outermost level (a block) to the innermost (an NVLink domain).
    pub levels: Vec<String>,
    /// The nodes, in any order.
    pub nodes: Vec<Node>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name in the cluster.
    pub name: String,
    /// What it offers, by resource name (`nvidia.com/gpu`).
    pub gpus: BTreeMap<String, Gpus>,
    /// What its GPUs are (`NVIDIA-H100-80GB-HBM3`), if it says so.
    pub product: Option<String>,
    /// Its labels; those named by [`Snapshot::levels`] say where it stands. Shared with whoever keeps them: a cluster has many,
    /// and a snapshot is taken for every plan.
    #[serde(serialize_with = "labels", deserialize_with = "shared")]
    pub labels: Arc<BTreeMap<String, String>>,
    /// What keeps pods away that do not tolerate it.
    pub taints: Vec<Taint>,
    /// Whether somebody cordoned it.
    pub cordoned: bool,
    /// Whether its kubelet reports that it can run pods.
    pub ready: bool,
    /// Thousandths of a CPU that it gives to pods; at least what is free.
    pub cpu_milli: u64,
    /// Bytes of memory that it gives to pods; at least what is free.
    pub memory: u64,
    /// Thousandths of a CPU that no pod has asked for.
    pub free_cpu_milli: u64,
    /// Bytes of memory that no pod has asked for.
    pub free_memory: u64,
    /// How many more pods it takes.
    pub free_pods: u32,
    /// Who has its GPUs.
    pub holders: Vec<Holder>,
}

/// GPUs of one resource name on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// How many the node gives to pods.
    pub allocatable: u32,
    /// How many of them nobody has asked for.
    pub free: u32,
    /// Into how many a real GPU is time-sliced; 1 where it is not.
    #[serde(default = "whole")]
    pub replicas: u32,
}

/// A job or pod that has GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// What people call it: `job bert-a91`, `pod default/notebook-0`.
    pub name: String,
    /// The resource it holds.
    pub resource: String,
    /// How many.
    pub gpus: u32,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

/// What keeps pods away from a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value, often empty.
    #[serde(default)]
    pub value: String,
    /// What it does to pods.
    pub effect: Effect,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Effect {
    /// They do not come here.
    NoSchedule,
    /// They come here if there is no other place; the planner does not mind it.
    PreferNoSchedule,
    /// They do not come here, and those that run here are evicted.
    NoExecute,
}

/// Why a file is no snapshot of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Written by a program that means something else by the same words.
    #[error("the snapshot has version {0}, and this program reads version {VERSION}")]
    Version(u32),
    /// A node without a name.
    #[error("node {0} of the snapshot has no name")]
    Nameless(usize),
    /// Two nodes with one name.
    #[error("the snapshot has two nodes {0}")]
    Twice(String),
    /// More GPUs free than there are.
    #[error("the snapshot says that {node} has {free} of {allocatable} {resource} free")]
    MoreFreeThanAll {
        /// The node.
        node: String,
        /// The resource.
        resource: String,
        /// How many are free, it says.
        free: u32,
        /// How many there are, it says.
        allocatable: u32,
    },
    /// More GPUs than a node can have.
    #[error(
        "the snapshot says that {node} has {gpus} {resource}, and no node has more than {MOST_GPUS_OF_A_NODE}"
    )]
    TooManyGpus {
        /// The node.
        node: String,
        /// The resource.
        resource: String,
        /// How many it has, it says.
        gpus: u32,
    },
    /// More levels than can be counted.
    #[error("the snapshot has {0} topology levels, and at most {MOST_LEVELS} can be counted")]
    Levels(usize),
    /// The same level twice.
    #[error("the snapshot has the topology level {0} twice")]
    LevelTwice(String),
    /// More nodes than a cluster has.
    #[error("the snapshot has {0} nodes, and at most {MOST_NODES} can be planned for")]
    Nodes(usize),
}

impl Snapshot {
    /// A cluster of these nodes, seen at `taken` (seconds since 1970), whose topology has these label keys.
    ///
    /// # Errors
    /// What cannot be true of any cluster.
    pub fn new(taken: u64, levels: Vec<String>, nodes: Vec<Node>) -> Result<Snapshot, SnapshotError> {
        Draft { version: Version, taken, levels, nodes }.try_into()
    }
}

impl Node {
    /// A node that is ready, has this much free of everything but GPUs, and nothing else to be said of.
    pub fn new(name: impl Into<String>) -> Node {
        Node {
            name: name.into(),
            ready: true,
            cpu_milli: u64::MAX,
            memory: u64::MAX,
            free_cpu_milli: u64::MAX,
            free_memory: u64::MAX,
            free_pods: u32::MAX,
            ..Node::default()
        }
    }

    /// With `free` of `allocatable` whole GPUs of this resource.
    #[must_use]
    pub fn with_gpus(mut self, resource: &str, free: u32, allocatable: u32) -> Node {
        self.gpus.insert(resource.to_owned(), Gpus { allocatable, free, replicas: 1 });
        self
    }

    /// With this label.
    #[must_use]
    pub fn with_label(mut self, key: &str, value: &str) -> Node {
        Arc::make_mut(&mut self.labels).insert(key.to_owned(), value.to_owned());
        self
    }
}

fn labels<S: Serializer>(labels: &Arc<BTreeMap<String, String>>, serializer: S) -> Result<S::Ok, S::Error> {
    labels.as_ref().serialize(serializer)
}

fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<BTreeMap<String, String>>, D::Error> {
    BTreeMap::deserialize(deserializer).map(Arc::new)
}

fn whole() -> u32 {
    1
}

/// A snapshot as it is read, before it is believed.
#[derive(Deserialize)]
#[serde(expecting = "a snapshot of a cluster")]
struct Draft {
    version: Version,
    #[serde(default)]
    taken: u64,
    #[serde(default)]
    levels: Vec<String>,
    nodes: Vec<Node>,
}

impl TryFrom<Draft> for Snapshot {
    type Error = SnapshotError;

    fn try_from(draft: Draft) -> Result<Snapshot, SnapshotError> {
        let Draft { version, taken, levels, nodes } = draft;
        if levels.len() > MOST_LEVELS {
            return Err(SnapshotError::Levels(levels.len()));
        }
        if let Some((_, twice)) = levels.iter().enumerate().find(|(at, level)| levels[..*at].contains(level))
        {
            return Err(SnapshotError::LevelTwice(twice.clone()));
        }
        if nodes.len() > MOST_NODES {
            return Err(SnapshotError::Nodes(nodes.len()));
        }
        let mut names = BTreeSet::new();
        for (index, node) in nodes.iter().enumerate() {
            if node.name.is_empty() {
                return Err(SnapshotError::Nameless(index));
            }
            if !names.insert(&node.name) {
                return Err(SnapshotError::Twice(node.name.clone()));
            }
            for (resource, gpus) in &node.gpus {
                if gpus.allocatable > MOST_GPUS_OF_A_NODE {
                    return Err(SnapshotError::TooManyGpus {
                        node: node.name.clone(),
                        resource: resource.clone(),
                        gpus: gpus.allocatable,
                    });
                }
                if gpus.free > gpus.allocatable {
                    return Err(SnapshotError::MoreFreeThanAll {
                        node: node.name.clone(),
                        resource: resource.clone(),
                        free: gpus.free,
                        allocatable: gpus.allocatable,
                    });
                }
            }
        }
        Ok(Snapshot { version, taken, levels, nodes })
    }
}

/// The number [`VERSION`], and no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Version;

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(VERSION)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Version, D::Error> {
        match u32::deserialize(deserializer)? {
            VERSION => Ok(Version),
            other => Err(serde::de::Error::custom(SnapshotError::Version(other))),
        }
    }
}
