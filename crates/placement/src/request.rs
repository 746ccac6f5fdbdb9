//! What a job asks for.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::affinity::Term;
use crate::snapshot::{Effect, Taint};

/// The resource that is meant if nobody says otherwise.
pub const DEFAULT_RESOURCE: &str = "nvidia.com/gpu";
/// How many GPUs one job may ask for.
pub const MOST_GPUS: u32 = 100_000;

/// What a job asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// With fewer GPUs it does not start.
    pub min: u32,
    /// It takes as many as there are up to this; equal to `min` where the number is fixed.
    pub max: u32,
    /// The resource name of the GPUs.
    pub resource: String,
    /// Only GPUs whose product has this in its name, in capitals or not.
    pub product: Option<String>,
    /// At most so many GPUs of one node.
    pub per_node: Option<u32>,
    /// Thousandths of a CPU that a pod needs for each of its GPUs.
    pub cpu_milli_per_gpu: u64,
    /// Bytes of memory that a pod needs for each of its GPUs.
    pub memory_per_gpu: u64,
    /// Thousandths of a CPU that a pod needs besides, whatever its share.
    pub cpu_milli_per_pod: u64,
    /// Bytes of memory that a pod needs besides.
    pub memory_per_pod: u64,
    /// Thousandths of a CPU that a pod needs in any case, for what runs in it before the job does.
    pub cpu_milli_at_least: u64,
    /// Bytes of memory that a pod needs in any case.
    pub memory_at_least: u64,
    /// The taints its pods put up with.
    pub tolerations: Vec<Toleration>,
    /// Labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Terms of which a node must fit one, if there are any.
    pub affinity: Vec<Term>,
    /// Which of the possible plans is the best.
    pub policy: Policy,
    /// What it wants of the topology. If nothing, all levels of the snapshot are preferred.
    pub topology: Option<Topology>,
    /// Nodes that are not to be used for now, and why.
    pub excluded: BTreeMap<String, String>,
}

/// Which of the possible plans is the best. What each means exactly is in the prose of [the crate](crate).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The fewest nodes, and no larger hole broken up than needed.
    #[default]
    Pack,
    /// The fewest nodes, with shares as equal as they can be.
    Balance,
    /// The most nodes.
    Spread,
    /// Nodes by free GPUs, the most first, filled one after the other.
    InOrder,
}

/// What a job wants of the topology.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Topology {
    /// The level's label key: one of [`Snapshot::levels`](crate::Snapshot::levels), or any other that nodes have.
    pub level: String,
    /// Whether all GPUs must be in one domain of this level. If not, the fewest domains of it and of the levels around it
    /// are preferred, and levels inside it do not matter.
    pub required: bool,
}

/// A taint that a job's pods put up with, by the rules of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// The taint's key; any if there is none.
    pub key: Option<String>,
    /// The taint's value; any if there is none (the operator `Exists`).
    pub value: Option<String>,
    /// The taint's effect; any if there is none.
    pub effect: Option<Effect>,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            min: 1,
            max: 1,
            resource: DEFAULT_RESOURCE.to_owned(),
            product: None,
            per_node: None,
            cpu_milli_per_gpu: 0,
            memory_per_gpu: 0,
            cpu_milli_per_pod: 0,
            memory_per_pod: 0,
            cpu_milli_at_least: 0,
            memory_at_least: 0,
            tolerations: Vec::new(),
            node_selector: BTreeMap::new(),
            affinity: Vec::new(),
            policy: Policy::default(),
            topology: None,
            excluded: BTreeMap::new(),
        }
    }
}

impl Request {
    /// Exactly so many GPUs, and nothing else.
    pub fn new(gpus: u32) -> Request {
        Request { min: gpus, max: gpus, ..Request::default() }
    }

    /// At least `min` and at most `max` GPUs.
    pub fn between(min: u32, max: u32) -> Request {
        Request { min, max, ..Request::default() }
    }

    /// The CPU, in thousandths, of a pod with so many GPUs.
    pub fn cpu_milli(&self, gpus: u32) -> u64 {
        of_pod(gpus, self.cpu_milli_per_gpu, self.cpu_milli_per_pod, self.cpu_milli_at_least)
    }

    /// The memory, in bytes, of a pod with so many GPUs.
    pub fn memory(&self, gpus: u32) -> u64 {
        of_pod(gpus, self.memory_per_gpu, self.memory_per_pod, self.memory_at_least)
    }

    /// The same by another policy.
    #[must_use]
    pub fn by(mut self, policy: Policy) -> Request {
        self.policy = policy;
        self
    }
}

/// What a pod asks for: what comes with each GPU and what it needs besides, or what runs before the job if that is more.
fn of_pod(gpus: u32, each: u64, besides: u64, at_least: u64) -> u64 {
    each.saturating_mul(u64::from(gpus)).saturating_add(besides).max(at_least)
}

impl Toleration {
    /// Puts up with every taint of this key.
    pub fn of_key(key: impl Into<String>) -> Toleration {
        Toleration { key: Some(key.into()), ..Toleration::default() }
    }

    /// Whether this taint is one it puts up with.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::Pack, Policy::Balance, Policy::Spread, Policy::InOrder];

    /// The word for it on command lines.
    pub fn word(self) -> &'static str {
        match self {
            Policy::Pack => "pack",
            Policy::Balance => "balance",
            Policy::Spread => "spread",
            Policy::InOrder => "in-order",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Why a word is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {0}; there are pack, balance, spread and in-order")]
pub struct NoSuchPolicy(String);

impl FromStr for Policy {
    type Err = NoSuchPolicy;

    fn from_str(word: &str) -> Result<Policy, NoSuchPolicy> {
        let known = Policy::ALL.into_iter().find(|policy| policy.word() == word);
        known.ok_or_else(|| NoSuchPolicy(word.to_owned()))
    }
}
