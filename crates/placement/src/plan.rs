//! What the planner answers: a plan, or the reason why there is none. Both say of every node what became of it.
//!
//! The order of the fields is the order in JSON, which scripts and people read.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::reason::Reason;
use crate::request::Policy;

/// Which nodes a job's GPUs come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// One for every node that is used, the largest first, equal ones by name. The chief is the last.
    pub shares: Vec<Share>,
    /// All GPUs together.
    pub gpus: u32,
    /// Their resource name.
    pub resource: String,
    /// By which policy.
    pub policy: Policy,
    /// What became of every node, by name.
    pub nodes: Vec<Verdict>,
    /// What another policy would have chosen, where that is something else.
    pub alternatives: Vec<Alternative>,
}

/// The part of a job on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The node's name.
    pub node: String,
    /// How many of its GPUs.
    pub gpus: u32,
    /// Whether this is the chief: the last and smallest share.
    pub chief: bool,
}

/// What became of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Its name.
    pub node: String,
    /// How many GPUs of the resource it has.
    pub all: u32,
    /// How many of them are free.
    pub free: u32,
    /// How many of those this job could have.
    pub usable: u32,
    /// How many it gets.
    pub taken: u32,
    /// Into how many a real GPU is time-sliced; 1 where it is not.
    pub replicas: u32,
    /// Why it gets none, or not all that are free.
    pub reason: Option<Reason>,
}

/// What another policy would have chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// The policy.
    pub policy: Policy,
    /// Its shares.
    pub shares: Vec<Share>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", self.with_nodes(self.headline()))]
pub struct Refusal {
    /// What is in the way.
    pub cause: Cause,
    /// What became of every node, by name; none if the request itself is wrong.
    pub nodes: Vec<Verdict>,
}

/// What is in the way of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Cause {
    /// The request makes no sense, whatever the cluster.
    Invalid {
        /// What is wrong with it.
        problem: String,
    },
    /// Too few GPUs can be had now, but they may become free.
    NotEnough {
        /// How many are asked for at least.
        wanted: u32,
        /// How many can be had now.
        usable: u32,
        /// The topology level that all must share, if one is required.
        level: Option<String>,
        /// The resource.
        resource: String,
    },
    /// The nodes that are meant have too few GPUs even if all of them were free.
    Never {
        /// How many are asked for at least.
        wanted: u32,
        /// How many there are.
        all: u32,
        /// The topology level that all must share, if one is required.
        level: Option<String>,
        /// The resource.
        resource: String,
    },
}

impl Plan {
    /// The share of this node, if it has one.
    pub fn share(&self, node: &str) -> Option<&Share> {
        self.shares.iter().find(|share| share.node == node)
    }

    /// `5 + 1 on node-1, node-3`: the shares in a few words.
    pub fn summary(&self) -> String {
        summary(&self.shares)
    }
}

/// `5 + 1 on node-1, node-3`.
pub(crate) fn summary(shares: &[Share]) -> String {
    const MOST: usize = 8;
    let mut sizes: Vec<String> = shares.iter().take(MOST).map(|share| share.gpus.to_string()).collect();
    let mut nodes: Vec<String> = shares.iter().take(MOST).map(|share| share.node.clone()).collect();
    if shares.len() > MOST {
        sizes.push("…".to_owned());
        nodes.push(format!("and {} more", shares.len() - MOST));
    }
    format!("{} on {}", sizes.join(" + "), nodes.join(", "))
}

impl Refusal {
    pub(crate) fn invalid(problem: impl Into<String>) -> Refusal {
        Refusal { cause: Cause::Invalid { problem: problem.into() }, nodes: Vec::new() }
    }

    /// How many more GPUs are needed; none if waiting does not help.
    pub fn missing(&self) -> Option<u32> {
        match &self.cause {
            Cause::NotEnough { wanted, usable, .. } => Some(wanted - usable),
            Cause::Invalid { .. } | Cause::Never { .. } => None,
        }
    }

    /// `waiting for 2 more GPUs: node-2 is cordoned, node-4 is full (job bert-a91, 3 h 20 m so far)`, for those who wait;
    /// none if waiting does not help.
    pub fn waiting(&self) -> Option<String> {
        let missing = self.missing()?;
        Some(self.with_nodes(format!("waiting for {missing} more {}", gpus(missing))))
    }

    /// What is in the way, without the nodes' reasons.
    pub fn headline(&self) -> String {
        let place = |level: &Option<String>| {
            level.as_ref().map_or(String::new(), |level| format!(" in one domain of {level}"))
        };
        match &self.cause {
            Cause::Invalid { problem } => problem.clone(),
            Cause::NotEnough { wanted, usable, level, resource } => format!(
                "{wanted} {} ({resource}) {} asked for, and {} can be had{} now",
                gpus(*wanted),
                are(*wanted),
                if *usable == 0 { "none".to_owned() } else { usable.to_string() },
                place(level)
            ),
            Cause::Never { wanted, all, level, resource } => format!(
                "{wanted} {} ({resource}) {} asked for, and there {} {}{}, even if nobody used any",
                gpus(*wanted),
                are(*wanted),
                are(*all),
                if *all == 0 { "none".to_owned() } else { format!("only {all}") },
                place(level)
            ),
        }
    }

    /// What would help: what could start now, and what could be done about nodes that give nothing.
    pub fn help(&self) -> Vec<String> {
        const MOST: usize = 3;
        let mut help = Vec::new();
        if let Cause::NotEnough { usable, .. } = self.cause
            && usable > 0
        {
            help.push(format!("{usable} {} could start now: --gpus {usable}", gpus(usable)));
        }
        let mut nodes: Vec<&Verdict> = self.nodes.iter().filter(|node| node.free > node.usable).collect();
        nodes.sort_by(|a, b| (b.free - b.usable).cmp(&(a.free - a.usable)).then_with(|| a.node.cmp(&b.node)));
        let idle =
            |node: &Verdict| format!("{} free {}", node.free - node.usable, gpus(node.free - node.usable));
        help.extend(nodes.into_iter().filter_map(|node| match node.reason.as_ref()? {
            Reason::Cordoned => Some(format!("kubectl uncordon {} would add {}", node.node, idle(node))),
            Reason::Tainted { taint } => {
                Some(format!("tolerating the taint {} would add {} of {}", taint.key, idle(node), node.node))
            }
            // Where not even a pod fits, asking for less with each GPU does not help.
            Reason::Cpu { free_milli, pod_milli, .. } if pod_milli <= free_milli => {
                Some(format!("less CPU a GPU would add {} of {}", idle(node), node.node))
            }
            Reason::Memory { free, pod, .. } if pod <= free => {
                Some(format!("less memory a GPU would add {} of {}", idle(node), node.node))
            }
            Reason::Limit { .. } => {
                Some(format!("a higher limit for a node would add {} of {}", idle(node), node.node))
            }
            _ => None,
        }));
        help.truncate(MOST);
        help
    }

    /// The sentence, and after it the nodes that could give the most, with their reasons.
    fn with_nodes(&self, sentence: String) -> String {
        const MOST: usize = 4;
        let mut nodes: Vec<&Verdict> = self.nodes.iter().filter(|node| node.withheld() > 0).collect();
        nodes.sort_by(|a, b| b.withheld().cmp(&a.withheld()).then_with(|| a.node.cmp(&b.node)));
        let mut words: Vec<String> = nodes.iter().take(MOST).map(|node| node.sentence()).collect();
        if nodes.len() > MOST {
            words.push(format!("and {} more", nodes.len() - MOST));
        }
        if words.is_empty() { sentence } else { format!("{sentence}: {}", words.join(", ")) }
    }
}

impl Verdict {
    /// How many GPUs this node has that the job cannot have.
    fn withheld(&self) -> u32 {
        self.all - self.usable
    }

    /// `node-2 is cordoned`.
    fn sentence(&self) -> String {
        match &self.reason {
            Some(reason) => format!("{} {reason}", self.node),
            None => format!("{} gives {} of {}", self.node, self.usable, self.all),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence())
    }
}

/// `is` or `are`.
fn are(count: u32) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// `GPU` or `GPUs`.
pub(crate) fn gpus(count: u32) -> &'static str {
    if count == 1 { "GPU" } else { "GPUs" }
}
