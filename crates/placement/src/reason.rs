//! Why a node is not used, or not all of it: data first, and the words people read.
//!
//! The words follow the node's name: `node-2` `is cordoned`. Reasons of nodes that could have been used are sentences of
//! their own, as in `6 = 5 + 1 needs one more GPU; node-3 fits tighter`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::gpus;
use crate::snapshot::{Effect, Taint};

/// Why a node is not used, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reason {
    /// It does not offer the resource.
    NoSuchGpus {
        /// The resource.
        resource: String,
    },
    /// The request leaves it out.
    Excluded {
        /// Why, in the request's words.
        why: String,
    },
    /// Its kubelet does not report that it can run pods.
    NotReady,
    /// Somebody cordoned it.
    Cordoned,
    /// It has a taint that is not tolerated.
    Tainted {
        /// The taint.
        taint: Taint,
    },
    /// It lacks a label that the request selects nodes by.
    Unselected {
        /// The label's key.
        key: String,
        /// The label's value that is asked for.
        value: String,
    },
    /// It fits none of the request's terms of affinity.
    Unfit {
        /// All of them, in a few words.
        wanted: String,
    },
    /// Its GPUs are others than asked for.
    OtherProduct {
        /// What they are, if the node says so.
        product: Option<String>,
        /// What is asked for.
        wanted: String,
    },
    /// It does not say where it stands at the level that is required.
    Nowhere {
        /// The level.
        level: String,
    },
    /// Others have all of its GPUs.
    Full {
        /// Who.
        holders: Vec<Holding>,
    },
    /// Others have some of its GPUs, and the rest does not help.
    Held {
        /// How many are left.
        free: u32,
        /// Who has the others.
        holders: Vec<Holding>,
    },
    /// It takes no more pods.
    NoPods,
    /// What it has of CPU is too little: for any pod, for one GPU or for all that are free.
    Cpu {
        /// Thousandths that are free.
        free_milli: u64,
        /// Thousandths that each GPU needs.
        each_milli: u64,
        /// Thousandths that a pod needs whatever its share; more than are free if no pod fits.
        #[serde(default)]
        pod_milli: u64,
    },
    /// What it has of memory is too little: for any pod, for one GPU or for all that are free.
    Memory {
        /// Bytes that are free.
        free: u64,
        /// Bytes that each GPU needs.
        each: u64,
        /// Bytes that a pod needs whatever its share; more than are free if no pod fits.
        #[serde(default)]
        pod: u64,
    },
    /// It may not give more.
    Limit {
        /// How many GPUs the request takes of one node.
        per_node: u32,
    },
    /// It stands elsewhere.
    Elsewhere {
        /// The level at which it does.
        level: String,
        /// The domain of it that is used, if it is one.
        domain: Option<String>,
        /// How many are used.
        domains: u32,
    },
    /// It could give the last share, but another node fits tighter.
    Looser {
        /// All shares, as `6 = 5 + 1`.
        sum: String,
        /// How many GPUs the last share has.
        last: u32,
        /// Who gives it.
        taken: String,
    },
    /// It could give the last share as well as another node, which comes first by name or by domain.
    Later {
        /// Who gives it.
        taken: String,
    },
    /// It has too few GPUs for any share.
    TooSmall {
        /// All shares, as `6 = 5 + 1`.
        sum: String,
        /// How many the smallest share has.
        smallest: u32,
    },
    /// All are found without it.
    NotNeeded {
        /// All shares, as `6 = 5 + 1`.
        sum: String,
    },
    /// It gives a part, and no more is needed.
    Enough,
}

/// Who has GPUs of a node, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// What people call it.
    pub name: String,
    /// How many GPUs.
    pub gpus: u32,
    /// For how many seconds so far.
    pub seconds: u64,
}

impl Reason {
    /// The words without a node's name before them: `cordoned`.
    pub fn short(&self) -> String {
        let words = self.to_string();
        words.strip_prefix("is ").map_or(words.clone(), str::to_owned)
    }
}

impl Reason {
    /// What many nodes of one kind are counted as: `3 cordoned`.
    pub fn kind(&self) -> &'static str {
        match self {
            Reason::NoSuchGpus { .. } => "without such GPUs",
            Reason::Excluded { .. } => "left out",
            Reason::NotReady => "not ready",
            Reason::Cordoned => "cordoned",
            Reason::Tainted { .. } => "tainted",
            Reason::Unselected { .. } => "not selected",
            Reason::Unfit { .. } => "that do not fit the node affinity",
            Reason::OtherProduct { .. } => "with other GPUs",
            Reason::Nowhere { .. } => "without a topology label",
            Reason::Full { .. } => "full",
            Reason::Held { .. } => "partly in use",
            Reason::NoPods => "with no room for pods",
            Reason::Cpu { .. } => "short of CPU",
            Reason::Memory { .. } => "short of memory",
            Reason::Limit { .. } => "at the limit",
            Reason::Elsewhere { .. } => "in other domains",
            Reason::Looser { .. } | Reason::Later { .. } => "that fit no better",
            Reason::TooSmall { .. } => "too small",
            Reason::NotNeeded { .. } | Reason::Enough => "not needed",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoSuchGpus { resource } => write!(f, "has no {resource}"),
            Reason::Excluded { why } if why.is_empty() => f.write_str("is left out"),
            Reason::Excluded { why } => write!(f, "is left out: {why}"),
            Reason::NotReady => f.write_str("is not ready"),
            Reason::Cordoned => f.write_str("is cordoned"),
            Reason::Tainted { taint } => {
                let Taint { key, value, effect } = taint;
                let equals = if value.is_empty() { "" } else { "=" };
                write!(f, "is tainted {key}{equals}{value}:{}", word(*effect))
            }
            Reason::Unselected { key, value } => write!(f, "is not labelled {key}={value}"),
            Reason::Unfit { wanted } => write!(f, "does not fit the node affinity {wanted}"),
            Reason::OtherProduct { product: Some(product), wanted } => {
                write!(f, "has {product}, not {wanted}")
            }
            Reason::OtherProduct { product: None, wanted } => {
                write!(f, "does not say whether its GPUs are {wanted}")
            }
            Reason::Nowhere { level } => write!(f, "has no label {level}"),
            Reason::Full { holders } => write!(f, "is full{}", Holders(holders)),
            Reason::Held { free, holders } => write!(f, "has only {free} free{}", Holders(holders)),
            Reason::NoPods => f.write_str("takes no more pods"),
            Reason::Cpu { free_milli: free, each_milli, pod_milli } => {
                write!(f, "has {} CPUs free; {}", Milli(*free), needs(*free, *pod_milli, *each_milli, Milli))
            }
            Reason::Memory { free, each, pod } => {
                write!(f, "has {} of memory free; {}", Bytes(*free), needs(*free, *pod, *each, Bytes))
            }
            Reason::Limit { per_node } => write!(f, "gives no more than {per_node}, the limit for a node"),
            Reason::Elsewhere { level, domain: Some(domain), .. } => {
                write!(f, "is outside {} {domain}, where all fit", last_part(level))
            }
            Reason::Elsewhere { level, domain: None, domains } => {
                write!(
                    f,
                    "is outside the domains of {} that are used, and {domains} are enough",
                    last_part(level)
                )
            }
            Reason::Looser { sum, last, taken } => {
                write!(f, "{sum} needs {} more {}; {taken} fits tighter", number(*last), gpus(*last))
            }
            Reason::Later { taken } => write!(f, "fits as well as {taken}, which comes first"),
            Reason::TooSmall { sum, smallest } => {
                write!(f, "is too small: {sum} needs {} {} on every node", number(*smallest), gpus(*smallest))
            }
            Reason::NotNeeded { sum } => write!(f, "is not needed: {sum}"),
            Reason::Enough => f.write_str("gives as many as are needed"),
        }
    }
}

fn word(effect: Effect) -> &'static str {
    match effect {
        Effect::NoSchedule => "NoSchedule",
        Effect::PreferNoSchedule => "PreferNoSchedule",
        Effect::NoExecute => "NoExecute",
    }
}

/// `rack` of `topology.example.com/rack`.
pub(crate) fn last_part(level: &str) -> &str {
    level.rsplit('/').next().unwrap_or(level)
}

fn number(count: u32) -> String {
    if count == 1 { "one".to_owned() } else { count.to_string() }
}

/// ` (job bert-a91, 3 h 20 m so far)`, or nothing if nobody is known; the largest holder first, and how many others.
struct Holders<'a>(&'a [Holding]);

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            [first, others @ ..] => {
                write!(f, " ({}, {} so far", first.name, Age(first.seconds))?;
                if !others.is_empty() {
                    write!(f, "; {} more", others.len())?;
                }
                f.write_str(")")
            }
        }
    }
}

/// A time span in its two largest units: `3 h 20 m`.
pub(crate) struct Age(pub(crate) u64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        match (days, hours, minutes) {
            (0, 0, 0) => write!(f, "{seconds} s"),
            (0, 0, _) => write!(f, "{minutes} m"),
            (0, _, _) => write!(f, "{hours} h {} m", minutes % 60),
            _ => write!(f, "{days} d {} h", hours % 24),
        }
    }
}

/// What pods need of something that is short: `each GPU needs 2`, `a pod needs 0.1`.
fn needs<U: fmt::Display>(free: u64, pod: u64, each: u64, unit: fn(u64) -> U) -> String {
    let (a_pod, a_gpu) = (unit(pod), unit(each));
    match pod {
        0 => format!("each GPU needs {a_gpu}"),
        _ if pod > free => format!("a pod needs {a_pod}"),
        _ => format!("a pod needs {a_pod}, and {a_gpu} for each GPU"),
    }
}

/// Thousandths as a number of CPUs: `0.5`, `12`.
struct Milli(u64);

impl fmt::Display for Milli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1000, self.0 % 1000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:03}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

/// Bytes in the largest unit of which there is one, rounded down to a tenth: `1.5 GiB`.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let Some((name, shift)) = units.into_iter().find(|(_, shift)| self.0 >> shift > 0) else {
            return write!(f, "{} B", self.0);
        };
        let tenths = (u128::from(self.0) * 10) >> shift;
        match tenths % 10 {
            0 => write!(f, "{} {name}", tenths / 10),
            rest => write!(f, "{}.{rest} {name}", tenths / 10),
        }
    }
}
